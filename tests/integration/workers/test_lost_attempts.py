"""What a lost attempt had shown is read from its log and kept with the attempt."""

from __future__ import annotations

import asyncio

import pytest

from cli.valkey import Valkey
from schemas.stream_event import ToolNote
from storage.jobs.claim import claim
from storage.jobs.settle import expire
from storage.jobs.statements import Recorded
from tests.integration.workers.mill import PATIENCE_S, Mill, eventually
from tests.integration.workers.scripted import script
from workers import event_writer
from workers.job_stream import JobStream
from workers.lost_attempts import keep_what_was_shown

TOOL: ToolNote = {"id": "c1", "name": "clock", "status": "started", "args": {"zone": "UTC"}}


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "RETRY_S", (0.01,))


async def begin(mill: Mill, job_id: str) -> JobStream:
    """An attempt of a worker that will die."""
    claimed = await mill.database.write(claim, "chat", "a worker that dies", 1)
    assert claimed is not None
    assert claimed.job_id == job_id
    return mill.writer.open(claimed.recorded, on_lost=lambda: None)


async def show(mill: Mill, stream: JobStream, *said: str | ToolNote) -> None:
    """Say this, and wait until the log has it."""
    for piece in said:
        if isinstance(piece, str):
            stream.add_text(piece)
        else:
            stream.add_tool(piece)
    async with asyncio.timeout(PATIENCE_S):
        await stream.drain()


async def lose(mill: Mill, stream: JobStream) -> Recorded:
    recorded = await mill.database.write(expire, stream.job_id, stream.epoch)
    await mill.producer.announce(recorded)
    return recorded


async def kept(mill: Mill, job_id: str, attempt: int = 1) -> tuple[str | None, list[ToolNote] | None]:
    found = (await mill.attempts(job_id))[attempt - 1]
    return found["shown_text"], found["shown_tools"]


async def test_text_and_tools_of_a_lost_attempt_are_kept(mill: Mill) -> None:
    job_id = await mill.accept(script("a"))
    stream = await begin(mill, job_id)
    await show(mill, stream, "half ", TOOL, "an answer")
    await keep_what_was_shown(mill.database, mill.log, [await lose(mill, stream)])
    assert await kept(mill, job_id) == ("half an answer", [TOOL])


async def test_the_reconciler_that_expires_a_job_keeps_what_it_had_shown(
    redis_url: str, database_url: str, namespace: str
) -> None:
    async with Mill(redis_url, database_url, namespace, lease_s=0.2, lease_renew_s=0.1) as mill:
        job_id = await mill.accept(script("a"))
        await show(mill, await begin(mill, job_id), "half")

        async def expired() -> bool:
            return (await mill.reconciler.reconcile()).expired == 1

        await eventually(expired)
        assert await kept(mill, job_id) == ("half", None)


async def test_each_attempt_keeps_its_own(mill: Mill) -> None:
    job_id = await mill.accept(script("a"))
    first = await begin(mill, job_id)
    await show(mill, first, "first")
    lost_first = await lose(mill, first)
    second = await begin(mill, job_id)
    await show(mill, second, "second")
    # Late: the next attempt has begun, and its text stands in the same log.
    await keep_what_was_shown(mill.database, mill.log, [lost_first])
    assert (await kept(mill, job_id, 1), await kept(mill, job_id, 2)) == (("first", None), (None, None))
    await keep_what_was_shown(mill.database, mill.log, [await lose(mill, second)])
    assert (await kept(mill, job_id, 1), await kept(mill, job_id, 2)) == (("first", None), ("second", None))


async def test_what_was_said_again_by_a_rebuild_is_kept_whole(own_mill: Mill) -> None:
    job_id = await own_mill.accept(script("a"))
    stream = await begin(own_mill, job_id)
    await show(own_mill, stream, "before ", TOOL)
    await own_mill.redis.flushall()
    await show(own_mill, stream, "after ")
    await show(own_mill, stream, "and on")
    assert stream.epoch == 2, "it was rebuilt"
    await keep_what_was_shown(own_mill.database, own_mill.log, [await lose(own_mill, stream)])
    assert await kept(own_mill, job_id) == ("before after and on", [TOOL])


async def test_an_attempt_longer_than_one_reading_is_kept_whole(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.lost_attempts.READ_COUNT", 3)
    read = mill.log.read
    monkeypatch.setattr(mill.log, "read", lambda job_id, after: read(job_id, after, 3))
    job_id = await mill.accept(script("a"))
    stream = await begin(mill, job_id)
    for place in range(10):
        await show(mill, stream, str(place))
    await keep_what_was_shown(mill.database, mill.log, [await lose(mill, stream)])
    assert await kept(mill, job_id) == ("0123456789", None)


async def test_without_redis_nothing_is_kept_and_nobody_waits(own_mill: Mill, own_valkey: Valkey) -> None:
    job_id = await own_mill.accept(script("a"))
    stream = await begin(own_mill, job_id)
    await show(own_mill, stream, "half")
    await own_valkey.kill()
    recorded = await own_mill.database.write(expire, job_id, stream.epoch)
    await keep_what_was_shown(own_mill.database, own_mill.log, [recorded])
    assert await kept(own_mill, job_id) == (None, None)
