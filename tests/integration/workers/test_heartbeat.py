"""`chatmill heartbeat` against real workers that are killed, stopped, blocked and cut off from Redis."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cli.valkey import Valkey
from schemas.heartbeat import WorkerHeartbeat
from storage.heartbeats import Heartbeats
from tests.integration.workers.mill import Mill, eventually, file_appears
from tests.integration.workers.scripted import script
from tests.worker_process import ROOT, WorkerProcess


@dataclass(frozen=True)
class Answer:
    """What `chatmill heartbeat` said."""

    code: int
    lines: list[str]


@dataclass(frozen=True)
class Watched:
    """A worker, and the folder of its data."""

    worker: WorkerProcess
    data: Path

    async def heartbeat(self, *arguments: str) -> Answer:
        """Ask as a health check does."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "CHATMILL_DATA_DIR": str(self.data)}
        asking = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli.main", "heartbeat", *arguments),
            cwd=self.data,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await asking.communicate()
        assert asking.returncode is not None
        return Answer(asking.returncode, said.decode().splitlines())

    async def until(self, code: int, words: str, *arguments: str) -> Answer:
        """The first answer with this code and these words."""

        async def look() -> Answer | None:
            answer = await self.heartbeat(*arguments)
            return answer if answer.code == code and any(words in line for line in answer.lines) else None

        found = await eventually(look)
        assert found is not None
        return found

    def files(self) -> list[Path]:
        return sorted((self.data / "workers").glob("*.json"))

    def pid(self) -> int:
        """The number of its one worker process."""
        return int(self.worker.workers()[-1].split("-")[-2])


@pytest_asyncio.fixture
async def watched(own_mill: Mill, tmp_path: Path) -> AsyncIterator[Watched]:
    """A worker that is well, on a Redis of its own."""
    async with WorkerProcess(tmp_path / "worker", own_mill.settings.model_copy(update={"threads": 2})) as worker:
        await worker.ready()
        yield Watched(worker, tmp_path / "worker" / "data")


async def test_a_worker_that_is_well_says_so_in_its_folder_and_in_redis(watched: Watched, own_mill: Mill) -> None:
    answer = await watched.until(0, ": well")
    (line,) = answer.lines
    (worker_id,) = watched.worker.workers()
    assert line.startswith(f"worker {worker_id} (process {watched.pid()}, queue chat, 0 running): well")
    (file,) = watched.files()
    assert file.name == f"{watched.pid()}.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (alive,) = await eventually(lambda: signs(own_mill))
    assert (alive.worker, alive.pid, alive.queue, alive.threads) == (worker_id, watched.pid(), "chat", 2)
    assert alive.closing is False
    as_json = json.loads((await watched.heartbeat("--json")).lines[0])
    assert (as_json["ok"], as_json["workers"][0]["worker"]) == (True, worker_id)


async def test_a_worker_that_ends_in_order_leaves_no_sign(watched: Watched, own_mill: Mill) -> None:
    await eventually(lambda: signs(own_mill))
    assert await watched.worker.stop() == 0
    assert watched.files() == []
    assert list((watched.data / "workers").iterdir()) == []
    assert await signs(own_mill) == []
    answer = await watched.heartbeat()
    assert answer.code == 1
    assert "no worker" in answer.lines[0]


async def test_a_worker_that_was_killed_is_named_until_the_next_one_starts(watched: Watched, own_mill: Mill) -> None:
    old = watched.pid()
    watched.worker.kill()
    answer = await watched.heartbeat()
    assert answer.code == 1
    assert f"process {old}," in answer.lines[0]
    assert "was killed" in answer.lines[0]
    watched.worker.start()
    await watched.worker.ready(times=2)
    await watched.until(0, ": well")
    assert len(watched.files()) == 1


@pytest.mark.slow
async def test_a_worker_that_stands_still_is_stale_and_well_again_when_it_goes_on(watched: Watched) -> None:
    await watched.until(0, ": well")
    watched.worker.pause()
    await watched.until(1, "stands still", "--max-age", "4")
    assert (await watched.heartbeat("--max-age", "600")).code == 0
    watched.worker.resume()
    await watched.until(0, ": well", "--max-age", "4")


@pytest.mark.slow
async def test_a_worker_whose_loop_is_blocked_is_not_well(watched: Watched, own_mill: Mill, tmp_path: Path) -> None:
    blocking = tmp_path / "blocking"
    job_id = await own_mill.accept(script(("touch", str(blocking)), ("block", 16), "done"))
    await file_appears(blocking)
    answer = await watched.until(1, "its event loop is blocked")
    assert "1 running" in answer.lines[0]
    await own_mill.ended(job_id)
    await watched.until(0, ": well")
    assert await own_mill.transitions(job_id) == ["accept", "claim", "finish"]


@pytest.mark.slow
async def test_a_worker_without_redis_says_that_it_cannot_poll(watched: Watched, own_valkey: Valkey) -> None:
    await watched.until(0, ": well")
    await own_valkey.stop()
    answer = await watched.until(1, "has not polled Redis for")
    assert "is Redis there?" in answer.lines[0]
    await own_valkey.start()
    await watched.until(0, ": well")


@pytest.mark.slow
async def test_a_worker_that_is_full_goes_on_polling(watched: Watched, own_mill: Mill, tmp_path: Path) -> None:
    go = tmp_path / "go"
    accepted = [await own_mill.accept(script(("touch", str(tmp_path / f"{n}")), ("until", str(go)))) for n in range(4)]
    for number in range(2):
        await file_appears(tmp_path / str(number))
    await asyncio.sleep(17)
    assert (await watched.heartbeat()).code == 0
    go.touch()
    for job_id in accepted:
        assert (await own_mill.ended(job_id))["status"] == "finished"


async def test_a_worker_that_shuts_down_is_well_while_its_attempts_go_on(
    watched: Watched, own_mill: Mill, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    await own_mill.accept(script(("touch", str(begun)), ("until", str(go))))
    await file_appears(begun)
    ending = asyncio.create_task(watched.worker.stop())
    await watched.until(0, "well, shutting down")
    go.touch()
    assert await ending == 0


async def test_a_file_nobody_can_read_is_not_well(watched: Watched) -> None:
    await watched.until(0, ": well")
    (file,) = watched.files()
    os.kill(watched.pid(), signal.SIGSTOP)
    try:
        file.write_text("{")
        answer = await watched.heartbeat()
    finally:
        os.kill(watched.pid(), signal.SIGCONT)
    assert answer == Answer(1, [f"process {watched.pid()}: its sign of life cannot be read"])


async def test_old_and_unreadable_signs_in_redis_are_ignored_and_removed(own_mill: Mill) -> None:
    heartbeats = Heartbeats(own_mill.redis, own_mill.settings.namespace)
    key = f"{own_mill.settings.namespace}:workers"
    good = a_sign("good")
    old = a_sign("old").model_copy(update={"at": "2020-01-01T00:00:00.000Z"})
    future = a_sign("future").model_copy(update={"at": "2999-01-01T00:00:00.000Z"})
    strange = {"strange": b"{", "undated": a_sign("undated").model_copy(update={"at": "never"}).model_dump_json()}
    more = json.dumps({**a_sign("newer").model_dump(), "at": "2020-01-01T00:00:00.000Z", "new_field": 1})
    written: dict[Any, Any] = {
        "old": old.model_dump_json(),
        "future": future.model_dump_json(),
        **strange,
        "newer": more,
    }
    await own_mill.redis.hset(key, mapping=written)
    assert await heartbeats.alive() == []
    await heartbeats.write(good)
    assert await own_mill.redis.hkeys(key) == [b"good"]
    assert 0 < await own_mill.redis.ttl(key) <= 120
    ((found, age_s),) = await heartbeats.alive()
    assert (found.worker, found.at != good.at) == ("good", True)
    assert 0 <= age_s < 5
    await heartbeats.remove("good")
    assert await heartbeats.alive() == []


def a_sign(worker: str) -> WorkerHeartbeat:
    times = {"started_at": "2026-01-01T00:00:00.000Z", "at": "2026-01-01T00:00:00.000Z"}
    about = {"worker": worker, "host": "h", "pid": 1, "queue": "chat", "running": 0, "threads": 1, "version": "1"}
    return WorkerHeartbeat.model_validate({**times, **about, "polled_s_ago": None, "loop_lag_s": 0, "closing": False})


async def signs(mill: Mill) -> list[WorkerHeartbeat]:
    """The signs in Redis."""
    return [sign for sign, _ in await Heartbeats(mill.redis, mill.settings.namespace).alive()]
