"""The walk over the event log meets every rare path, breaks no rule, and finds each fault that is planted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from redis.exceptions import ResponseError

from storage import event_log
from storage.event_log import Append, Batch, EventLog
from storage.redis_client import open_redis
from tests.integration.log_walk import BrokenLog, LogWalk
from workers.job_stream import JobStream

RARE = (
    "cancel",
    "claimed",
    "client compared",
    "cut off",
    "fail",
    "fell back",
    "finish",
    "followed live",
    "forgotten",
    "hole",
    "jobs",
    "rebuilt",
    "reconciled",
    "redriven",
    "release",
    "repeat acknowledged",
    "reply lost",
    "request lost",
    "taken over",
    "writer LOST",
    "writer OK",
    "zombie FENCED",
    "zombie LOST",
    "zombie OK",
)


class Walker:
    """Starts a walk on a log that is made when it is called, after the fault was planted."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url, self.namespace = url, namespace

    async def __call__(self, seed: int, steps: int, meet: tuple[str, ...] = ()) -> None:
        async with open_redis(self.url) as redis, redis.pubsub() as pubsub:
            log = EventLog(redis, self.namespace, ttl_live_s=600, ttl_ended_s=60)
            await LogWalk(log, pubsub, seed).run(steps, meet)


@pytest_asyncio.fixture
async def walk(redis_url: str, namespace: str) -> AsyncIterator[Walker]:
    yield Walker(redis_url, namespace)


async def test_a_walk_gives_no_wrong_text(walk: Walker) -> None:
    await walk(seed=20261130, steps=6000, meet=RARE)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
async def test_long_walks_give_no_wrong_text(walk: Walker, seed: int) -> None:
    await walk(seed=seed, steps=20_000, meet=RARE)


#: In the script: what is written there, and what stands there instead.
SCRIPT_FAULTS = {
    "nobody is fenced off": ("if last_epoch > epoch then return 'FENCED' end", ""),
    "losses go unseen": ("if last_seq ~= base then return 'LOST' end", ""),
    "a repeat counts as a loss": ("last_seq == base + count or ", ""),
    "a repeat is appended again": (
        "if last_seq == base + count or (base == 0 and last_seq >= 1) then return 'OK' end",
        "if last_epoch == epoch then base = last_seq end",
    ),
    "an opening cannot be repeated later": (" or (base == 0 and last_seq >= 1)", ""),
    "an older epoch's numbers go on": ("last_seq, terminal = 0, false", "terminal = false"),
    "the id before stands still": ("previous = id", ""),
    "nothing is published": ("redis.call('PUBLISH', key, id .. ' ' .. previous .. ' ' .. event)", ""),
    "only the last of a batch is kept": ("for i = 1, count do", "for i = count, count do"),
    "a batch is numbered from its base": ("base + i", "base + i - 1"),
    "an empty log is taken for the epoch's own": (
        "local last_epoch, last_seq",
        "local last_epoch, last_seq = epoch, base --",
    ),
}


@pytest.mark.parametrize("name", SCRIPT_FAULTS)
async def test_the_walk_finds_in_the_script_that(walk: Walker, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    right, wrong = SCRIPT_FAULTS[name]
    assert right in event_log._SCRIPT
    monkeypatch.setattr(event_log, "_SCRIPT", event_log._SCRIPT.replace(right, wrong))
    with pytest.raises((BrokenLog, ResponseError)):
        await walk(seed=3, steps=6000)


def a_batch_of_unknown_fate_is_joined_with_later_text(patch: pytest.MonkeyPatch) -> None:
    next_batch = JobStream.next_batch

    def join(stream: JobStream) -> Batch | None:
        if stream.sent is not None and stream.sent.base and stream._pending:
            events = [stream._encode(stream._pending.popleft()) for _ in range(len(stream._pending))]
            stream.sent = Batch(stream.job_id, stream.epoch, stream.sent.base, (*stream.sent.events, *events))
        return next_batch(stream)

    patch.setattr(JobStream, "next_batch", join)


def a_batch_of_unknown_fate_is_taken_for_sent(patch: pytest.MonkeyPatch) -> None:
    next_batch = JobStream.next_batch

    def forget(stream: JobStream) -> Batch | None:
        if stream.sent is not None and stream.sent.base:
            stream.acknowledge(stream.sent)
        return next_batch(stream)

    patch.setattr(JobStream, "next_batch", forget)


def a_loss_is_taken_for_an_answer(patch: pytest.MonkeyPatch) -> None:
    append = EventLog.append

    async def deaf(log: EventLog, batch: Batch, also: Any = None) -> Append:
        answer = await append(log, batch, also)
        return Append.OK if answer is Append.LOST else answer

    patch.setattr(EventLog, "append", deaf)


def a_rebuild_says_only_what_was_acknowledged(patch: pytest.MonkeyPatch) -> None:
    snapshot = JobStream.snapshot

    def short(stream: JobStream) -> Any:
        text, tools = snapshot(stream)
        return text[: len(text) // 2], tools

    patch.setattr(JobStream, "snapshot", short)


def a_rebuild_goes_on_in_the_old_epoch(patch: pytest.MonkeyPatch) -> None:
    reopen = JobStream.reopen

    def stay(stream: JobStream, rebuilt: Any) -> None:
        epoch, base = stream.epoch, stream._base
        reopen(stream, rebuilt)
        stream.epoch, stream._base = epoch, base

    patch.setattr(JobStream, "reopen", stay)


Plant = Callable[[pytest.MonkeyPatch], None]
WRITER_FAULTS: list[Plant] = [
    a_batch_of_unknown_fate_is_joined_with_later_text,
    a_batch_of_unknown_fate_is_taken_for_sent,
    a_loss_is_taken_for_an_answer,
    a_rebuild_says_only_what_was_acknowledged,
    a_rebuild_goes_on_in_the_old_epoch,
]


@pytest.mark.parametrize("plant", WRITER_FAULTS, ids=lambda plant: plant.__name__)
async def test_the_walk_finds_in_the_writer_that(walk: Walker, monkeypatch: pytest.MonkeyPatch, plant: Plant) -> None:
    plant(monkeypatch)
    with pytest.raises((BrokenLog, ResponseError)):
        await walk(seed=3, steps=6000)
