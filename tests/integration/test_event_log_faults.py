"""The event log on a Valkey that forgets, ends and fills up."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cli.valkey import Valkey
from schemas.ids import new_id
from storage.event_log import Append, EventLog
from tests.integration.event_logs import ENDED_S, LIVE_S, batch, heard, ids, listening


@pytest.fixture
def job_id() -> str:
    return new_id()


async def own_log(valkey: Valkey) -> EventLog:
    return EventLog(Redis.from_url(valkey.url), "own", ttl_live_s=LIVE_S, ttl_ended_s=ENDED_S)


async def test_a_server_that_forgot_the_script_is_taught_it_again(own_valkey: Valkey, job_id: str) -> None:
    log = await own_log(own_valkey)
    async with log.redis:
        for epoch in range(3):
            assert await log.append(batch(job_id, epoch, 0)) is Append.OK
            await log.redis.script_flush()
        answers = await log.append_all([batch(job_id, 3, 0), batch(new_id(), 0, 0), batch(new_id(), 0, 9)])
        assert answers == [Append.OK, Append.OK, Append.LOST]
        assert await ids(log, job_id) == ["0-1", "1-1", "2-1", "3-1"]


@pytest.mark.parametrize("flushed_after", range(5))
async def test_a_script_lost_in_the_middle_of_a_pipeline_loses_and_repeats_nothing(
    own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch, flushed_after: int
) -> None:
    log = await own_log(own_valkey)
    async with log.redis:
        jobs = [new_id() for _ in range(4)]
        await log.append_all([batch(job_id, 1, 0) for job_id in jobs])
        async with listening(log, jobs[0]) as pubsub:
            await pubsub.subscribe(*(log.key(job_id) for job_id in jobs[1:]))
            with monkeypatch.context() as patch:
                pipelines = 0

                def pipeline(*arguments: Any, **options: Any) -> Any:
                    nonlocal pipelines
                    pipelines += 1
                    made = real(*arguments, **options)
                    return _flushing(made, flushed_after) if pipelines == 1 else made

                real = log.redis.pipeline
                patch.setattr(log.redis, "pipeline", pipeline)
                answers = await log.append_all([batch(job_id, 1, 1, b"a", b"b") for job_id in jobs])
            assert answers == [Append.OK] * 4
            assert pipelines == (1 if flushed_after == 4 else 2)
            assert len(await heard(pubsub)) == 8
        for job_id in jobs:
            assert await ids(log, job_id) == ["1-1", "1-2", "1-3"]


def _flushing(pipeline: Any, after: int) -> Any:
    """The pipeline, with somebody's SCRIPT FLUSH behind its first `after` commands."""
    execute = pipeline.execute

    async def execute_flushed(**options: Any) -> Any:
        commands = pipeline.command_stack
        pipeline.command_stack = commands[:after]
        pipeline.script_flush()
        pipeline.command_stack += commands[after:]
        answers = await execute(**options)
        del answers[after]
        return answers

    pipeline.execute = execute_flushed
    return pipeline


async def test_a_server_that_is_gone_is_an_error_and_a_repeat_is_right(own_valkey: Valkey, job_id: str) -> None:
    log = await own_log(own_valkey)
    async with log.redis:
        await log.append(batch(job_id, 1, 0))
        await own_valkey.stop()
        for asking in (log.append(batch(job_id, 1, 1, b"x")), log.read(job_id), log.last_ids([job_id])):
            with pytest.raises(RedisError):
                await asking
        await own_valkey.start()
        assert await log.append(batch(job_id, 1, 1, b"x")) is Append.OK
        assert await ids(log, job_id) == ["1-1", "1-2"]


async def test_a_server_that_lost_everything_tells_every_writer(own_valkey: Valkey, job_id: str) -> None:
    log = await own_log(own_valkey)
    async with log.redis:
        await log.append(batch(job_id, 1, 0))
        await log.append(batch(job_id, 1, 1, b"x"))
        await log.redis.flushall()
        assert await log.append(batch(job_id, 1, 2, b"y")) is Append.LOST
        assert await log.append(batch(job_id, 1, 0)) is Append.OK, "somebody appends the transition again"
        assert await log.append(batch(job_id, 1, 2, b"y")) is Append.LOST
        assert await log.append(batch(job_id, 2, 0, b"snapshot")) is Append.OK
        assert await log.append(batch(job_id, 2, 1, b"y")) is Append.OK
        assert await ids(log, job_id) == ["1-1", "2-1", "2-2"]


async def test_a_full_server_is_an_error_and_keeps_what_it_has(own_valkey: Valkey, job_id: str) -> None:
    log = await own_log(own_valkey)
    async with log.redis:
        await log.append(batch(job_id, 1, 0))
        await log.redis.config_set("maxmemory", "1mb")
        with pytest.raises(RedisError, match="maxmemory"):
            await log.append(batch(job_id, 1, 1, b"x" * 4_000_000))
        await log.redis.config_set("maxmemory", "0")
        assert await log.append(batch(job_id, 1, 1, b"x")) is Append.OK
        assert await ids(log, job_id) == ["1-1", "1-2"]
