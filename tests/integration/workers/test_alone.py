"""A job that was lost twice in company runs once more in a process of its own; real workers, really killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from schemas.agent_message import AgentMessage
from storage.jobs.claim import claim
from storage.jobs.settle import expire, finish
from storage.queues import pause, resume
from storage.tables import jobs
from tests.integration.workers import mill as mill_module
from tests.integration.workers.mill import NOWHERE, Mill, eventually, file_appears
from tests.integration.workers.scripted import script, scripts
from tests.worker_process import WorkerProcess

SHORT_LEASE: dict[str, Any] = {"lease_s": 3, "lease_renew_s": 0.3, "reconcile_s": 0.2}
ALONE = "chat.alone"
STARTED = "started a process for a job that runs alone"

Start = Callable[..., Any]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that loads every agent takes many seconds on a busy machine."""
    monkeypatch.setattr(mill_module, "PATIENCE_S", 60.0)


@pytest_asyncio.fixture
async def mill(redis_url: str, sqlite_url: str, namespace: str) -> AsyncIterator[Mill]:
    """Looks on from beside the workers."""
    async with Mill(redis_url, sqlite_url, namespace, threads=4, reconcile_s=0.2) as mill:
        yield mill


@pytest_asyncio.fixture
async def start(mill: Mill, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts workers; they are ended with the test."""
    async with AsyncExitStack() as stack:
        count = 0

        async def start(**changes: Any) -> WorkerProcess:
            nonlocal count
            count += 1
            settings = mill.settings.model_copy(update=changes)
            worker = await stack.enter_async_context(WorkerProcess(tmp_path / f"worker{count}", settings))
            await worker.ready()
            return worker

        yield start


async def isolated(mill: Mill, message: str) -> str:
    """A job that two workers have lost together with another one; returns its id."""
    job_id = await mill.accept(message, priority=1)
    for worker in ("ghost-1", "ghost-2"):
        await mill.accept(script("beside it"))
        poison = await mill.database.write(claim, "chat", worker, 1)
        other = await mill.database.write(claim, "chat", worker, 60_000_000)
        assert poison is not None
        assert other is not None
        await mill.database.write(expire, job_id, poison.epoch)
        await mill.database.write(finish, other.job_id, other.epoch, [AgentMessage.assistant("beside it")], None)
    assert (await row(mill, job_id))["lane"] == ALONE
    return job_id


async def row(mill: Mill, job_id: str) -> dict[str, Any]:
    (found,) = await mill.rows(jobs, id=job_id)
    return found


async def ended(mill: Mill, job_id: str, status: str) -> dict[str, Any]:
    """The job's row once it has ended so, after a process was started for it."""
    async with asyncio.timeout(60):
        while (job := await row(mill, job_id))["ended_at"] is None:  # noqa: ASYNC110 - it ends in another process
            await asyncio.sleep(0.02)
    assert job["status"] == status
    return job


async def keep_up(worker: WorkerProcess) -> None:
    """What whoever runs workers does: start it again when it has died."""
    while True:
        if worker.code() is not None:
            worker.start()
        await asyncio.sleep(0.05)


def starts(*workers: WorkerProcess) -> int:
    return sum(line["event"] == STARTED for worker in workers for line in worker.lines())


@pytest.mark.slow
async def test_a_job_that_kills_its_worker_dies_alone_and_takes_no_healthy_one_with_it(
    mill: Mill, start: Start, tmp_path: Path
) -> None:
    workers = [await start(**SHORT_LEASE), await start(**SHORT_LEASE)]
    go, kill_1, kill_2 = tmp_path / "go", tmp_path / "kill-1", tmp_path / "kill-2"
    poison = await mill.accept(
        scripts(
            a1=["x", ("until", str(kill_1)), ("kill",)],
            a2=["y", ("until", str(kill_2)), ("kill",)],
            otherwise=["z", ("kill",)],
        ),
        priority=1,
    )
    healthy = [await mill.accept(script(f"<{n}>", ("until", str(go)), "!")) for n in range(14)]
    async with asyncio.TaskGroup() as beside:
        keepers = [beside.create_task(keep_up(worker)) for worker in workers]
        for attempt, kill in ((1, kill_1), (2, kill_2)):

            async def in_company(attempt: int = attempt) -> bool:
                job = await row(mill, poison)
                if job["status"] != "running" or job["attempt"] != attempt:
                    return False
                return len(await mill.rows(jobs, status="running", worker=job["worker"])) > 2

            await eventually(in_company)
            kill.touch()

        async def is_alone() -> bool:
            return str((await row(mill, poison))["lane"]) == ALONE

        await eventually(is_alone)
        go.touch()
        for job_id in healthy:
            await ended(mill, job_id, "finished")
        await ended(mill, poison, "dead")
        for keeper in keepers:
            keeper.cancel()
    assert await mill.transitions(poison) == ["accept", *["claim", "expire"] * 3]
    (letter,) = await mill.dead_letters(poison)
    assert "alone" in letter["error"]["message"]
    alone = [job for job in await mill.rows(jobs, lane=ALONE) if job["id"] != poison]
    assert all(job["status"] == "finished" and job["attempt"] == 3 for job in alone)


async def test_a_job_that_dies_alone_costs_its_worker_nothing(mill: Mill, start: Start, tmp_path: Path) -> None:
    go, told = tmp_path / "go", tmp_path / "told"
    job_id = await isolated(mill, script("last words", ("until", str(told)), ("kill",)))
    worker = await start(**SHORT_LEASE)
    neighbour = await mill.accept(script("a", ("until", str(go)), "b"))

    async def told_of() -> bool:
        return (await mill.fold(job_id)).text == "last words"

    await eventually(told_of)
    told.touch()
    await ended(mill, job_id, "dead")
    (badly,) = await worker.logged("the process of a job that runs alone ended badly")
    assert badly["ended"] == "killed by SIGKILL"
    assert worker.code() is None
    go.touch()
    await ended(mill, neighbour, "finished")
    assert await mill.transitions(neighbour) == ["accept", "claim", "finish"]
    last = (await mill.attempts(job_id))[-1]
    assert last["worker"] not in worker.workers()

    async def shown() -> bool:
        return bool((await mill.attempts(job_id))[-1]["shown_text"] == "last words")

    await eventually(shown)


async def test_only_one_process_is_started_for_one_job(mill: Mill, start: Start, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await isolated(mill, script("a", ("touch", str(begun)), ("until", str(go)), "b"))
    workers = await asyncio.gather(start(), start(processes=2))
    await file_appears(begun)
    await asyncio.sleep(2.5)  # three looks of every process, while it runs
    go.touch()
    await ended(mill, job_id, "finished")
    assert (await mill.fold(job_id)).text == "ab"
    await asyncio.sleep(1.5)
    assert starts(*workers) == 1


async def test_a_worker_told_to_end_hands_on_its_job_that_runs_alone(mill: Mill, start: Start, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    job_id = await isolated(mill, scripts(a3=["half", ("touch", str(begun)), NOWHERE], otherwise=["whole"]))
    worker = await start(shutdown_grace_s=1)
    await file_appears(begun)
    other = await start()
    assert await worker.stop() == 0
    assert (await mill.transitions(job_id))[-1] in ("release", "claim"), "its worker has waited for it"
    job = await ended(mill, job_id, "finished")
    assert (job["lane"], job["failures"]) == (ALONE, 2)
    assert (await mill.transitions(job_id))[5:] == ["claim", "release", "claim", "finish"]
    assert starts(other) == 1


async def test_a_job_that_runs_alone_ends_in_order_when_its_worker_is_killed(
    mill: Mill, start: Start, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await isolated(mill, script("a", ("touch", str(begun)), ("until", str(go)), "b"))
    worker = await start()
    await file_appears(begun)
    (started,) = await worker.logged(STARTED)
    worker.kill()

    async def notices() -> bool:
        return any(line["event"] == "shutting down" for line in worker.lines())

    await eventually(notices)
    go.touch()
    await ended(mill, job_id, "finished")
    assert (await mill.transitions(job_id))[5:] == ["claim", "finish"]
    await eventually(lambda: _is_gone(started["pid"]))


async def test_a_handler_that_blocks_is_killed_when_its_worker_ends(mill: Mill, start: Start, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    job_id = await isolated(mill, script("a", ("touch", str(begun)), ("block", 60)))
    worker = await start(shutdown_grace_s=0, **SHORT_LEASE)
    await file_appears(begun)
    (started,) = await worker.logged(STARTED)
    assert await worker.stop() == 0
    assert await _is_gone(started["pid"])
    assert (await row(mill, job_id))["status"] == "running", "its lease runs out, and others find that"


async def test_a_process_that_cannot_start_says_why_and_is_started_again(
    mill: Mill, start: Start, tmp_path: Path
) -> None:
    job_id = await isolated(mill, script("at last"))
    await mill.database.write(pause, "chat")
    worker = await start()
    config = tmp_path / "worker1" / "chatmill.toml"
    good = config.read_text()
    config.write_text("no TOML")
    await mill.database.write(resume, "chat")
    (why,) = await worker.logged("a job that must run alone cannot be started")
    assert "is not valid TOML" in why["reason"]
    await worker.logged("the process of a job that runs alone ended badly")
    assert await mill.status(job_id) == "queued"
    config.write_text(good)
    await ended(mill, job_id, "finished")


async def test_a_job_that_runs_alone_is_cancelled_at_once(mill: Mill, start: Start, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    job_id = await isolated(mill, script("half", ("touch", str(begun)), NOWHERE))
    await start(**SHORT_LEASE)
    await file_appears(begun)
    await mill.cancel(job_id)
    await ended(mill, job_id, "cancelled")
    assert (await mill.fold(job_id)).text == "half"


async def _is_gone(pid: int) -> bool:
    """Whether a process has ended, also if whoever got it as a child has not looked yet."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()  # noqa: ASYNC240 - no file
    except OSError:
        return True
