"""Real worker processes that share a queue, die, freeze and are told to end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from schemas.job_event import EventId
from storage.tables import jobs, messages
from tests.integration.workers.mill import NOWHERE, Mill, eventually, file_appears
from tests.integration.workers.raw_redis import RawRedis
from tests.integration.workers.scripted import script, scripts
from tests.worker_process import WorkerProcess

#: Short enough for a test to see it pass, long enough for a busy machine to renew it.
SHORT_LEASE: dict[str, Any] = {"lease_s": 3, "lease_renew_s": 0.3, "reconcile_s": 0.2}
SECRETS = ("a secret sentence", "sk-abcdefgh12345678")


@pytest_asyncio.fixture
async def mill(redis_url: str, sqlite_url: str, namespace: str) -> AsyncIterator[Mill]:
    """Looks on from beside the workers."""
    async with Mill(redis_url, sqlite_url, namespace, threads=4, reconcile_s=0.2) as mill:
        yield mill


Start = Callable[..., Any]


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


async def test_workers_share_a_queue_and_each_job_runs_once_each_session_in_order(
    mill: Mill, start: Start, tmp_path: Path
) -> None:
    await asyncio.gather(start(), start(processes=2))
    # As many as all of them have room for, each waiting until every one has begun.
    go = tmp_path / "go"
    together = [await mill.accept(script(("touch", str(tmp_path / str(n))), ("until", str(go)))) for n in range(12)]
    for place in range(12):
        await file_appears(tmp_path / str(place))
    go.touch()
    chains = [[job_id] for job_id in together]
    for place in range(5):
        first = await mill.accept(script(f"<{place}>"))
        session_id = (await mill.job(first))["session_id"]
        chains.append([first] + [await mill.accept(script(("history",)), session_id=session_id) for _ in range(3)])
    for chain in chains:
        texts = []
        for job_id in chain:
            assert (await mill.ended(job_id))["status"] == "finished"
            assert await mill.transitions(job_id) == ["accept", "claim", "finish"]
            texts.append((await mill.fold(job_id)).text)
        assert all(earlier in later for earlier, later in pairwise(texts))
    served = Counter([(await mill.attempts(job_id))[0]["worker"] for job_id in together])
    assert sorted(served.values()) == [4, 4, 4]


async def test_a_job_whose_worker_was_killed_is_answered_by_another(mill: Mill, start: Start, tmp_path: Path) -> None:
    victim = await start(**SHORT_LEASE)
    begun = tmp_path / "begun"
    job_id = await mill.accept(scripts(a1=["half", ("touch", str(begun)), ("until", "/nowhere")], a2=["whole"]))
    await file_appears(begun)
    other = await start(**SHORT_LEASE)
    victim.kill()
    await mill.ended(job_id)
    assert await mill.transitions(job_id) == ["accept", "claim", "expire", "claim", "finish"]
    first, second = await mill.attempts(job_id)
    assert (first["error_class"], first["worker"]) == ("WorkerLost", victim.workers()[0])
    assert second["worker"] == other.workers()[0]
    await told(mill, job_id)
    assert (await mill.fold(job_id)).text == "whole"


async def told(mill: Mill, job_id: str) -> None:
    """Wait until the job's log has its end."""

    async def look() -> bool:
        return (await mill.fold(job_id)).terminal is not None

    await eventually(look)


@pytest.mark.slow
async def test_a_job_that_kills_its_worker_every_time_is_dead_after_the_second(mill: Mill, start: Start) -> None:
    job_id = await mill.accept(script("half", ("kill",)))
    worker = await start(**SHORT_LEASE)
    code = await worker.ended()
    assert code != 0, "or nobody would start it again"
    worker.start()
    await worker.ended()
    worker.start()
    await told(mill, job_id)
    assert await mill.transitions(job_id) == ["accept", "claim", "expire", "claim", "expire"]
    assert (await mill.events(job_id))[-1][1]["kind"] == "failed"
    (letter,) = await mill.dead_letters(job_id)
    assert letter["error"]["code"] == "worker_lost"
    good = await mill.accept(script("still alive"))
    assert (await mill.ended(good))["status"] == "finished"


async def test_a_worker_that_froze_past_its_lease_writes_nothing_when_it_wakes_and_goes_on(
    mill: Mill, start: Start, tmp_path: Path
) -> None:
    zombie = await start(**SHORT_LEASE)
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await mill.accept(
        scripts(a1=["zombie", ("touch", str(begun)), ("until", str(go)), " speaks"], a2=["other"])
    )
    await file_appears(begun)
    other = await start(**SHORT_LEASE)
    zombie.pause()
    await told(mill, job_id)
    go.touch()
    before = await mill.events(job_id)
    zombie.resume()
    await zombie.logged("the job was taken over")
    assert await mill.events(job_id) == before
    assert (await mill.fold(job_id)).text == "other"
    assert [row["content"] for row in await mill.rows(messages, job_id=job_id, role="assistant")] == ["other"]
    other.kill()
    following = await mill.accept(script("awake"))
    assert (await mill.ended(following))["status"] == "finished"
    assert (await mill.attempts(following))[0]["worker"] == zombie.workers()[0]


async def test_a_worker_told_to_end_finishes_short_answers_and_hands_long_ones_on(
    mill: Mill, start: Start, tmp_path: Path
) -> None:
    worker = await start(shutdown_grace_s=1)
    go = tmp_path / "go"
    short = await mill.accept(script("a", ("touch", str(tmp_path / "short")), ("until", str(go)), "b"))
    long = await mill.accept(
        scripts(a1=["half", ("touch", str(tmp_path / "long")), ("until", "/nowhere")], a2=["whole"])
    )
    await asyncio.gather(file_appears(tmp_path / "short"), file_appears(tmp_path / "long"))
    other = await start()
    ending = asyncio.create_task(worker.stop())
    await worker.logged("shutting down")
    go.touch()
    assert await ending == 0
    # What it had to say was in the log before it ended.
    assert (await mill.fold(short)).terminal is not None
    assert await mill.transitions(short) == ["accept", "claim", "finish"]
    assert (await mill.ended(long))["failures"] == 0
    assert await mill.transitions(long) == ["accept", "claim", "release", "claim", "finish"]
    assert [attempt["worker"] for attempt in await mill.attempts(long)] == [worker.workers()[0], other.workers()[0]]
    await told(mill, long)
    assert await mill.kinds(long) == ["queued", "started", "text", "requeued", "started", "text", "final"]


async def test_processes_whose_master_was_killed_hand_their_jobs_on_and_end(
    mill: Mill, start: Start, tmp_path: Path
) -> None:
    """Nobody would ever stop them, and a supervisor starts others beside them."""
    worker = await start(processes=2, shutdown_grace_s=0)
    begun = tmp_path / "begun"
    job_id = await mill.accept(script(("touch", str(begun)), NOWHERE))
    await file_appears(begun)
    processes = psutil.Process(worker.pid).children(recursive=True)
    os.kill(worker.pid, signal.SIGKILL)
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 30)
    assert not [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE], worker.log()[-3000:]
    accept, *rest = await mill.transitions(job_id)
    # The process that ends last may take it from the first.
    assert (accept, rest) in (("accept", ["claim", "release"]), ("accept", ["claim", "release"] * 2))


async def test_a_job_waits_for_a_worker_and_a_worker_with_nothing_to_do_ends_within_seconds(
    mill: Mill, start: Start
) -> None:
    job_id = await mill.accept(script("a"))
    worker = await start(threads=200)
    assert (await mill.ended(job_id))["status"] == "finished"
    began = time.monotonic()
    assert await worker.stop() == 0
    assert time.monotonic() - began < 12  # not the grace of 25 s


async def test_nothing_people_wrote_and_no_key_stands_in_the_log(mill: Mill, start: Start, redis_url: str) -> None:
    worker = await start()
    sentence, key = SECRETS
    with RawRedis(redis_url) as raw:
        namespace = mill.settings.namespace
        raw.send(namespace, {"job_id": "01890000-0000-7000-8000-000000000001", "message": f"{sentence} {key}", "x": 1})
        raw.send(namespace, {"message": sentence, "metadata": {"key": key}, "priority": sentence})
        raw.enqueue(namespace, "chat", "m", f"no json, {sentence} {key}".encode())
        raw.send(namespace, {"message": sentence}, actor_name="gone")
        raw.send(namespace, {"job_id": "01890000-0000-7000-8000-000000000002", "message": script(sentence, key)})
    failing = await mill.accept(script(sentence, key, ("raise", "own")))
    mismatch = await mill.accept(script(sentence, ("final", key)))
    for job_id in (failing, mismatch):
        await mill.ended(job_id)
    await mill.ended("01890000-0000-7000-8000-000000000002")
    assert await worker.stop() == 0
    log = worker.log()
    for secret in (*SECRETS, "nobody's business"):
        assert secret not in log
    ended = [line for line in worker.lines() if line["event"] == "attempt ended"]
    assert {line["job_id"] for line in ended} >= {failing, mismatch}
    assert all(line["tenant"] == "default" and line["attempt"] for line in ended)


async def test_a_worker_with_a_wrong_setting_says_so_and_ends(mill: Mill, tmp_path: Path) -> None:
    async with WorkerProcess(tmp_path / "worker", mill.settings, CHATMILL_LEASE_S="never") as worker:
        assert await worker.ended() != 0
        assert "lease_s" in worker.log()
        assert "Traceback" not in worker.log()


@pytest.mark.slow
async def test_sql_and_the_log_agree_after_workers_were_killed_under_load(mill: Mill, start: Start) -> None:
    """Every job ends once, the log's end is SQL's, the text is the saved one."""
    workers = [await start(**SHORT_LEASE), await start(**SHORT_LEASE)]
    accepted = [await mill.accept(script(*(f"<{n}>" for n in range(20)), ("block", 0.02))) for _ in range(60)]
    await mill.ended(accepted[5])
    workers[0].kill()
    workers[0].start()
    await mill.ended(accepted[30])
    workers[1].kill()
    for job_id in accepted:
        job = await mill.ended(job_id)
        assert job["status"] == "finished"
        await told(mill, job_id)
        fold = await mill.fold(job_id)
        assert fold.last_id == EventId(job["epoch"], 1)
        (saved,) = await mill.rows(messages, job_id=job_id, role="assistant")
        assert saved["content"] == fold.text == "".join(f"<{n}>" for n in range(20))
    running = await mill.rows(jobs, status="running")
    assert running == []
