"""What a follower does with what it is offered, step by step."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import cast

import pytest

from gateway.follower import INBOX_MAX_BYTES, START, Event, Follower
from gateway.job_reader import JobReader
from schemas.errors import NotFound, StorageUnavailable
from schemas.job_event import EventId, encode_event
from storage.event_log import LogEntry, Published

#: Long enough for nothing to time out, short enough for a failing test.
PATIENCE_S = 5.0


class FakeReader:
    """A log and a database in memory. `reads` counts the readings of the log."""

    job_id = "j"

    def __init__(self) -> None:
        self.log: list[LogEntry] = []
        self.sql: tuple[EventId, bytes, bool] | Exception = StorageUnavailable("away")
        self.reads = 0
        self.page = 1000

    async def read_log(self, after: EventId) -> tuple[list[LogEntry], bool]:
        self.reads += 1
        found = [entry for entry in self.log if entry.id > after]
        return found[: self.page], len(found) > self.page

    async def last_event(self) -> tuple[EventId, bytes, bool]:
        if isinstance(self.sql, Exception):
            raise self.sql
        return self.sql


@pytest.fixture
def reader() -> FakeReader:
    return FakeReader()


def make_follower(reader: FakeReader, after: EventId = START) -> Follower:
    """A follower whose subscription is confirmed."""
    follower = Follower(cast("JobReader", reader), after, lambda follower: None)
    follower.fall_behind()
    return follower


def event(epoch: int, seq: int, kind: str = "text", text: str = "x") -> Event:
    return Event(EventId(epoch, seq), encode_event(kind, "j", 0, text=text))


def stored(event: Event) -> LogEntry:
    return LogEntry(event.id, event.data, terminal=False)


def published(event: Event, previous: EventId) -> Published:
    return Published(event.id, previous, event.data)


async def test_the_log_comes_first_and_then_what_is_published(reader: FakeReader) -> None:
    queued, text = event(0, 1, "queued"), event(1, 2)
    reader.log = [stored(queued)]
    follower = make_follower(reader)
    assert await follower.next(PATIENCE_S) == [queued]
    follower.offer(published(text, queued.id))
    assert await follower.next(PATIENCE_S) == [text]
    assert reader.reads == 1


async def test_an_event_that_is_known_already_is_dropped(reader: FakeReader) -> None:
    first, second = event(0, 1), event(0, 2)
    reader.log = [stored(first)]
    follower = make_follower(reader)
    await follower.next(PATIENCE_S)
    follower.offer(published(first, START))
    follower.offer(published(second, first.id))
    assert await follower.next(PATIENCE_S) == [second]
    assert reader.reads == 1


async def test_a_hole_sends_the_follower_to_the_log(reader: FakeReader) -> None:
    first, missed, third = event(0, 1), event(1, 1), event(1, 2)
    reader.log = [stored(first)]
    follower = make_follower(reader)
    await follower.next(PATIENCE_S)
    reader.log += [stored(missed), stored(third)]
    follower.offer(published(third, missed.id))
    assert await follower.next(PATIENCE_S) == [missed, third]


async def test_an_inbox_that_runs_over_is_given_up_for_the_log(reader: FakeReader) -> None:
    events = [event(0, seq, text="x" * 1000) for seq in range(1, 2 * INBOX_MAX_BYTES // 1000)]
    reader.log = [stored(events[0])]
    follower = make_follower(reader)
    await follower.next(PATIENCE_S)
    reader.log = [stored(event) for event in events]
    for before, after in pairwise(events):
        follower.offer(published(after, before.id))
    assert not follower._inbox
    assert await follower.next(PATIENCE_S) == events[1:]
    assert reader.reads == 2


async def test_one_event_larger_than_the_inbox_is_taken_all_the_same(reader: FakeReader) -> None:
    first, large = event(0, 1), event(0, 2, text="x" * 2 * INBOX_MAX_BYTES)
    reader.log = [stored(first)]
    follower = make_follower(reader)
    await follower.next(PATIENCE_S)
    follower.offer(published(large, first.id))
    assert await follower.next(PATIENCE_S) == [large]
    assert reader.reads == 1


async def test_a_long_log_is_read_page_by_page(reader: FakeReader) -> None:
    events = [event(0, seq) for seq in range(1, 6)]
    reader.log, reader.page = [stored(event) for event in events], 2
    follower = make_follower(reader)
    pages = [await follower.next(PATIENCE_S) for _ in range(3)]
    assert pages == [events[:2], events[2:4], events[4:]]


async def test_the_terminal_event_is_the_last(reader: FakeReader) -> None:
    reader.log = [stored(event(0, 1)), stored(event(1, 1, "final"))]
    follower = make_follower(reader)
    assert await follower.next(PATIENCE_S) is not None
    assert await follower.next(PATIENCE_S) is None
    assert await follower.next(PATIENCE_S) is None


async def test_a_terminal_event_with_a_redrive_behind_it_is_not_the_end(reader: FakeReader) -> None:
    reader.log, reader.page = [stored(event(1, 1, "failed")), stored(event(2, 1, "queued"))], 1
    follower = make_follower(reader)
    assert await follower.next(PATIENCE_S) == [event(1, 1, "failed")]
    assert await follower.next(PATIENCE_S) == [event(2, 1, "queued")]
    assert await follower.next(0.01) == []


async def test_a_terminal_event_that_sql_is_past_is_not_the_end(reader: FakeReader) -> None:
    reader.log = [stored(event(1, 1, "failed"))]
    reader.sql = (EventId(2, 1), event(2, 1, "queued").data, False)
    follower = make_follower(reader)
    follower.known_epoch = 2
    assert await follower.next(PATIENCE_S) == [event(1, 1, "failed")]
    assert await follower.next(PATIENCE_S) == [event(2, 1, "queued")]
    follower.offer(published(event(3, 1, "final"), EventId(2, 1)))
    assert await follower.next(PATIENCE_S) == [event(3, 1, "final")]
    assert await follower.next(PATIENCE_S) is None


async def test_a_terminal_event_that_sql_is_past_waits_while_sql_is_away(reader: FakeReader) -> None:
    reader.log = [stored(event(1, 1, "failed"))]
    follower = make_follower(reader)
    follower.known_epoch = 3
    assert await follower.next(PATIENCE_S) == [event(1, 1, "failed")]
    reads = reader.reads
    assert await follower.next(0.01) == []
    assert reader.reads <= reads + 1, "it waits, and does not ask again and again"
    reader.sql = (EventId(3, 1), event(3, 1, "final").data, True)
    follower.end()
    assert await follower.next(PATIENCE_S) == [event(3, 1, "final")]
    assert await follower.next(PATIENCE_S) is None


async def test_a_silent_job_gives_nothing_until_the_time_is_up(reader: FakeReader) -> None:
    reader.log = [stored(event(0, 1))]
    follower = make_follower(reader)
    await follower.next(PATIENCE_S)
    assert await follower.next(0.01) == []


async def test_an_ended_job_without_a_log_is_told_from_sql(reader: FakeReader) -> None:
    reader.sql = (EventId(3, 1), event(3, 1, "failed").data, True)
    follower = make_follower(reader, after=EventId(1, 5))
    follower.end()
    assert await follower.next(PATIENCE_S) == [event(3, 1, "failed")]
    assert await follower.next(PATIENCE_S) is None


async def test_a_client_that_has_the_terminal_event_already_is_told_nothing_more(reader: FakeReader) -> None:
    reader.sql = (EventId(3, 1), event(3, 1, "failed").data, True)
    follower = make_follower(reader, after=EventId(3, 1))
    follower.end()
    assert await follower.next(PATIENCE_S) is None


async def test_without_log_and_sql_an_ended_job_is_asked_for_again(reader: FakeReader) -> None:
    follower = make_follower(reader)
    follower.end()
    assert await follower.next(0.01) == []
    reader.sql = (EventId(3, 1), event(3, 1, "final").data, True)
    assert await follower.next(PATIENCE_S) == [event(3, 1, "final")]


async def test_a_job_that_was_redriven_meanwhile_goes_on(reader: FakeReader) -> None:
    reader.sql = (EventId(4, 1), event(4, 1, "queued").data, False)
    follower = make_follower(reader, after=EventId(3, 1))
    follower.end()
    assert await follower.next(PATIENCE_S) == [event(4, 1, "queued")]
    assert await follower.next(0.01) == []


async def test_a_job_that_is_gone_ends_its_streams(reader: FakeReader) -> None:
    reader.sql = NotFound("there is no such job")
    follower = make_follower(reader)
    follower.end()
    assert await follower.next(PATIENCE_S) is None


async def test_an_empty_log_at_the_start_is_made_up_for_by_sql(reader: FakeReader) -> None:
    reader.sql = (EventId(0, 1), event(0, 1, "queued").data, False)
    follower = make_follower(reader)
    assert await follower.next(PATIENCE_S) == [event(0, 1, "queued")]


async def test_closing_wakes_whoever_waits(reader: FakeReader) -> None:
    reader.log = [stored(event(0, 1))]
    follower = make_follower(reader)
    await follower.next(PATIENCE_S)
    waiting = asyncio.create_task(follower.next(PATIENCE_S))
    await asyncio.sleep(0)
    follower.close()
    assert await waiting is None


async def test_the_log_is_read_only_once_the_subscription_is_confirmed(reader: FakeReader) -> None:
    reader.log = [stored(event(0, 1))]
    follower = Follower(cast("JobReader", reader), START, lambda follower: None)
    reading = asyncio.create_task(follower.next(PATIENCE_S))
    await asyncio.sleep(0.01)
    assert reader.reads == 0
    follower.fall_behind()
    assert await reading == [event(0, 1)]
    assert reader.reads == 1
