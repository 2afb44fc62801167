"""The event log on a real Valkey: every answer of the append script, what it stores, and what it publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from redis.exceptions import ResponseError

from schemas.ids import new_id
from schemas.job_event import EventId, encode_event
from storage.event_log import Append, EventLog, LogEntry, Published, parse_published
from storage.redis_client import open_redis
from tests.integration.event_logs import ENDED_S, LIVE_S, batch, heard, ids, listening


@pytest_asyncio.fixture
async def log(redis_url: str, namespace: str) -> AsyncIterator[EventLog]:
    async with open_redis(redis_url) as redis:
        yield EventLog(redis, namespace, ttl_live_s=LIVE_S, ttl_ended_s=ENDED_S)


@pytest.fixture
def job_id() -> str:
    return new_id()


async def test_an_epoch_is_opened_by_its_transition(log: EventLog, job_id: str) -> None:
    assert await log.append(batch(job_id, 0, 0, b'{"kind":"queued"}')) is Append.OK
    assert await log.append(batch(job_id, 1, 0, b'{"kind":"started"}')) is Append.OK
    assert await log.read(job_id) == [
        LogEntry(EventId(0, 1), b'{"kind":"queued"}', False),
        LogEntry(EventId(1, 1), b'{"kind":"started"}', False),
    ]


async def test_what_follows_in_an_epoch_is_numbered_on(log: EventLog, job_id: str) -> None:
    await log.append(batch(job_id, 1, 0))
    assert await log.append(batch(job_id, 1, 1, b"a", b"b", b"c")) is Append.OK
    assert await log.append(batch(job_id, 1, 4, b"d")) is Append.OK
    assert await ids(log, job_id) == ["1-1", "1-2", "1-3", "1-4", "1-5"]
    assert [entry.event for entry in await log.read(job_id)][1:] == [b"a", b"b", b"c", b"d"]


async def test_each_event_is_published_with_the_id_before_it(log: EventLog, job_id: str) -> None:
    async with listening(log, job_id) as pubsub:
        await log.append(batch(job_id, 0, 0, b'{"a": "b c"}'))
        await log.append(batch(job_id, 1, 0, b"x"))
        await log.append(batch(job_id, 1, 1, b"y", b"z"))
        await log.append(batch(job_id, 2, 0, b"end", terminal=True))
        assert await heard(pubsub) == [
            Published(EventId(0, 1), EventId(0, 0), b'{"a": "b c"}'),
            Published(EventId(1, 1), EventId(0, 1), b"x"),
            Published(EventId(1, 2), EventId(1, 1), b"y"),
            Published(EventId(1, 3), EventId(1, 2), b"z"),
            Published(EventId(2, 1), EventId(1, 3), b"end"),
        ]


async def test_what_is_heard_is_stored_already(log: EventLog, job_id: str) -> None:
    async with listening(log, job_id) as pubsub:
        for seq in range(20):
            appending = asyncio.create_task(log.append(batch(job_id, 1, seq, b"x")))
            message: Any = None
            while message is None:
                message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=5)
            last = await log.last(job_id)
            assert last is not None
            assert last.id >= parse_published(message["data"]).id
            await appending


async def test_a_repeat_is_ok_and_changes_nothing(log: EventLog, job_id: str) -> None:
    await log.append(batch(job_id, 1, 0))
    await log.append(batch(job_id, 1, 1, b"a", b"b"))
    before = await log.read(job_id)
    async with listening(log, job_id) as pubsub:
        assert await log.append(batch(job_id, 1, 1, b"a", b"b")) is Append.OK
        assert await heard(pubsub) == []
    assert await log.read(job_id) == before


async def test_a_transitions_event_may_be_appended_again_by_anyone_at_any_time(log: EventLog, job_id: str) -> None:
    await log.append(batch(job_id, 1, 0))
    assert await log.append(batch(job_id, 1, 0)) is Append.OK
    await log.append(batch(job_id, 1, 1, b"a", b"b"))
    assert await log.append(batch(job_id, 1, 0)) is Append.OK
    assert await ids(log, job_id) == ["1-1", "1-2", "1-3"]
    await log.append(batch(job_id, 2, 0, b"end", terminal=True))
    assert await log.append(batch(job_id, 2, 0, b"end", terminal=True)) is Append.OK
    assert await ids(log, job_id) == ["1-1", "1-2", "1-3", "2-1"]


@pytest.mark.parametrize("base", [0, 1, 3, 9])
@pytest.mark.parametrize("terminal", [False, True])
async def test_an_older_epoch_is_fenced_off(log: EventLog, job_id: str, base: int, terminal: bool) -> None:
    await log.append(batch(job_id, 1, 0))
    await log.append(batch(job_id, 1, 1, b"a", b"b"))
    await log.append(batch(job_id, 2, 0))
    before = await log.read(job_id)
    async with listening(log, job_id) as pubsub:
        assert await log.append(batch(job_id, 1, base, b"late", terminal=terminal)) is Append.FENCED
        assert await heard(pubsub) == []
    assert await log.read(job_id) == before


@pytest.mark.parametrize("base", [1, 2, 4, 7])
async def test_a_writer_whose_entries_are_gone_is_told(log: EventLog, job_id: str, base: int) -> None:
    await log.append(batch(job_id, 1, 0))
    await log.append(batch(job_id, 1, 1, b"a", b"b"))
    before = await log.read(job_id)
    assert await log.append(batch(job_id, 1, base, b"x", b"y", b"z")) is Append.LOST
    assert await log.read(job_id) == before


async def test_an_empty_log_takes_an_opening_and_nothing_else(log: EventLog, job_id: str) -> None:
    assert await log.append(batch(job_id, 0, 1, b"x")) is Append.LOST
    assert await log.append(batch(job_id, 3, 5, b"x")) is Append.LOST
    assert await log.read(job_id) == []
    assert await log.append(batch(job_id, 3, 0, b"x")) is Append.OK
    assert await ids(log, job_id) == ["3-1"]


async def test_only_an_opening_begins_an_epoch(log: EventLog, job_id: str) -> None:
    await log.append(batch(job_id, 1, 0))
    assert await log.append(batch(job_id, 2, 1, b"x")) is Append.LOST
    assert await log.append(batch(job_id, 2, 0, b"x")) is Append.OK


async def test_nothing_follows_the_end_of_an_epoch_but_a_newer_one(log: EventLog, job_id: str) -> None:
    await log.append(batch(job_id, 1, 0))
    await log.append(batch(job_id, 2, 0, b"end", terminal=True))
    assert await log.append(batch(job_id, 2, 1, b"more")) is Append.ENDED
    assert await log.append(batch(job_id, 1, 1, b"more")) is Append.FENCED
    assert [entry.terminal for entry in await log.read(job_id)] == [False, True]
    assert await log.append(batch(job_id, 3, 0, b"redriven")) is Append.OK
    assert await log.append(batch(job_id, 2, 0, b"end", terminal=True)) is Append.FENCED
    assert await ids(log, job_id) == ["1-1", "2-1", "3-1"]


async def test_epochs_and_numbers_are_counted_not_spelt(log: EventLog, job_id: str) -> None:
    assert await log.append(batch(job_id, 9, 0)) is Append.OK
    assert await log.append(batch(job_id, 9, 1, *[b"x"] * 199)) is Append.OK
    assert await log.append(batch(job_id, 10, 0)) is Append.OK
    assert await log.append(batch(job_id, 2_000_000_000, 0)) is Append.OK
    assert await log.append(batch(job_id, 999_999_999, 0)) is Append.FENCED
    assert await ids(log, job_id) == [*(f"9-{seq}" for seq in range(1, 201)), "10-1", "2000000000-1"]


async def test_a_log_is_kept_long_while_the_job_lives_and_short_once_it_ended(log: EventLog, job_id: str) -> None:
    async def kept_s() -> float:
        return float(await log.redis.pttl(log.key(job_id))) / 1000

    await log.append(batch(job_id, 1, 0))
    assert LIVE_S - 5 < await kept_s() <= LIVE_S
    await log.append(batch(job_id, 2, 0, b"end", terminal=True))
    assert ENDED_S - 5 < await kept_s() <= ENDED_S
    await log.append(batch(job_id, 2, 0, b"end", terminal=True))
    await log.append(batch(job_id, 1, 0))
    assert await kept_s() <= ENDED_S, "what changes nothing keeps nothing longer"
    await log.append(batch(job_id, 3, 0, b"redriven"))
    assert LIVE_S - 5 < await kept_s() <= LIVE_S


async def test_a_log_is_read_from_any_cursor_a_page_at_a_time(log: EventLog, job_id: str) -> None:
    await log.append(batch(job_id, 0, 0))
    await log.append(batch(job_id, 1, 0))
    await log.append(batch(job_id, 1, 1, *[b"x"] * 10))
    pages: list[list[str]] = []
    cursor = None
    while page := await log.read(job_id, cursor, count=4):
        pages.append([str(entry.id) for entry in page])
        cursor = page[-1].id
    assert [len(page) for page in pages] == [4, 4, 4]
    assert [one for page in pages for one in page] == ["0-1", *(f"1-{seq}" for seq in range(1, 12))]
    assert await log.read(job_id, EventId(1, 11)) == []
    assert (await log.read(job_id, EventId(0, 99)))[0].id == EventId(1, 1)


async def test_the_ends_of_many_logs_are_one_question(log: EventLog) -> None:
    first, second, empty = new_id(), new_id(), new_id()
    await log.append_all([batch(first, 0, 0), batch(second, 4, 0, b"end", terminal=True)])
    assert await log.last_ids([first, empty, second]) == [EventId(0, 1), None, EventId(4, 1)]
    assert await log.last_ids([]) == []
    assert await log.last(empty) is None
    assert await log.last(second) == LogEntry(EventId(4, 1), b"end", True)


async def test_logs_can_be_forgotten(log: EventLog) -> None:
    first, second = new_id(), new_id()
    await log.append_all([batch(first, 0, 0), batch(second, 0, 0)])
    await log.forget([first])
    await log.forget([])
    assert await log.last_ids([first, second]) == [None, EventId(0, 1)]


async def test_namespaces_do_not_see_each_other(log: EventLog, job_id: str) -> None:
    other = EventLog(log.redis, "another", ttl_live_s=LIVE_S, ttl_ended_s=ENDED_S)
    async with listening(other, job_id) as pubsub:
        await log.append(batch(job_id, 0, 0))
        assert await heard(pubsub) == []
    assert await other.read(job_id) == []


@pytest.mark.parametrize(
    "text", ["", " ", "a b  c", "naïve 🙂 \u2028", '"quoted" \\ %s {0}', "x" * 300_000, "\r\n* 5\r\n"]
)
async def test_any_text_comes_through_byte_for_byte(log: EventLog, job_id: str, text: str) -> None:
    event = encode_event("text", job_id, 1, text=text)
    async with listening(log, job_id) as pubsub:
        await log.append(batch(job_id, 1, 0, event))
        assert [one.event for one in await heard(pubsub)] == [event]
    assert [entry.event for entry in await log.read(job_id)] == [event]


async def test_many_logs_are_appended_in_one_round_trip_each_with_its_own_answer(log: EventLog) -> None:
    fresh, fenced, lost, ended, broken = (new_id() for _ in range(5))
    await log.append_all(
        [batch(fenced, 5, 0), batch(lost, 1, 0), batch(ended, 1, 0, b"end", terminal=True)],
    )
    await log.redis.set(log.key(broken), "not a stream")
    answers = await log.append_all(
        [batch(fresh, 0, 0), batch(fenced, 4, 0), batch(broken, 0, 0), batch(lost, 1, 7), batch(ended, 1, 1)]
    )
    assert isinstance(answers[2], ResponseError)
    assert answers[:2] + answers[3:] == [Append.OK, Append.FENCED, Append.LOST, Append.ENDED]
    with pytest.raises(ResponseError):
        await log.append(batch(broken, 0, 0))


async def test_writers_of_one_epoch_raced_leave_a_log_without_holes(log: EventLog, job_id: str) -> None:
    """Two processes that both believe in the epoch: the same event, or one of them is told."""
    await log.append(batch(job_id, 1, 0))
    answers = await asyncio.gather(*(log.append(batch(job_id, 1, 1, b"x", b"y")) for _ in range(10)))
    assert set(answers) == {Append.OK}
    answers = await asyncio.gather(*(log.append(batch(job_id, 1, 3 + late, b"z")) for late in (0, 5, 0, 5)))
    assert sorted(answer.value for answer in answers) == ["LOST", "LOST", "OK", "OK"]
    assert await ids(log, job_id) == ["1-1", "1-2", "1-3", "1-4"]


@pytest.mark.parametrize("data", [b"1-2 1-1 {}", b"12-345 0-0 a b  c", b"0-1 0-0 "])
def test_what_is_published_is_read_back(data: bytes) -> None:
    id_, previous, event = data.split(b" ", 2)
    published = parse_published(data)
    assert (str(published.id).encode(), str(published.previous).encode(), published.event) == (id_, previous, event)
