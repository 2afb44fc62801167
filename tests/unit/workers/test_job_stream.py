"""What an attempt shows is numbered once, and what may have been stored is sent again as it was."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from schemas.stream_event import ToolNote
from storage.event_log import Batch
from tests.unit.workers.claims import opening, recorded
from workers.job_stream import MAX_BATCH, JobStream


class Wakes:
    """Counts how often a stream asked to be sent."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, stream: JobStream) -> None:
        self.count += 1


def a_stream() -> tuple[JobStream, Wakes]:
    wakes = Wakes()
    return JobStream(opening(), wakes), wakes


def opened() -> JobStream:
    """A stream whose `started` is in the log."""
    stream, _ = a_stream()
    stream.acknowledge(next_of(stream))
    return stream


def next_of(stream: JobStream) -> Batch:
    batch = stream.next_batch()
    assert batch is not None
    return batch


def said(batch: Batch) -> list[Any]:
    """The events of a batch without what is the same in each."""
    events = [orjson.loads(event) for event in batch.events]
    return [event.get("text", event.get("tool", event["kind"])) for event in events]


def note(call_id: str = "c1", status: Any = "started") -> ToolNote:
    return ToolNote(id=call_id, name="clock", status=status)


def test_the_opening_travels_alone_even_if_text_waits_already() -> None:
    stream, _ = a_stream()
    stream.add_text("early")
    first = next_of(stream)
    assert (first.epoch, first.base, said(first)) == (1, 0, ["started"])
    stream.acknowledge(first)
    second = next_of(stream)
    assert (second.base, said(second)) == (1, ["early"])


def test_text_that_waits_is_joined_and_numbered_once() -> None:
    stream = opened()
    stream.add_text("a")
    stream.add_text("b")
    batch = next_of(stream)
    assert said(batch) == ["ab"]
    stream.acknowledge(batch)
    stream.add_text("c")
    assert (next_of(stream).base, said(next_of(stream))) == (2, ["c"])


def test_text_is_not_joined_across_a_tool_call() -> None:
    stream = opened()
    stream.add_text("a")
    stream.add_tool(note())
    stream.add_text("b")
    assert said(next_of(stream)) == ["a", note(), "b"]


def test_a_batch_of_unknown_fate_is_sent_again_byte_for_byte_and_alone() -> None:
    stream = opened()
    stream.add_text("a")
    sent = next_of(stream)
    stream.add_text("b")
    stream.add_text("c")
    again = next_of(stream)
    assert again is sent
    assert again.events == sent.events
    stream.acknowledge(again)
    assert said(next_of(stream)) == ["bc"]


def test_many_events_travel_in_several_batches_with_numbers_that_follow_on() -> None:
    stream = opened()
    for place in range(MAX_BATCH + 3):
        stream.add_tool(note(f"c{place}"))
    first = next_of(stream)
    stream.acknowledge(first)
    second = next_of(stream)
    assert (len(first.events), first.base) == (MAX_BATCH, 1)
    assert (len(second.events), second.base) == (3, 1 + MAX_BATCH)


def test_nothing_is_sent_when_nothing_waits() -> None:
    assert opened().next_batch() is None


def test_an_acknowledgement_of_an_overtaken_batch_changes_nothing() -> None:
    stream = opened()
    stream.add_text("a")
    late = next_of(stream)
    stream.snapshot()
    stream.reopen(recorded("rebuild", 2, "snapshot", job_id=stream.job_id, text="a", tools=[]))
    stream.acknowledge(late)
    assert (next_of(stream).epoch, next_of(stream).base, said(next_of(stream))) == (2, 0, ["a"])


def test_a_snapshot_says_all_that_was_shown_and_sends_nothing_until_it_is_committed() -> None:
    stream = opened()
    stream.add_text("a")
    stream.acknowledge(next_of(stream))
    stream.add_tool(note())
    next_of(stream)
    stream.add_text("b")
    assert stream.snapshot() == ("ab", [note()])
    stream.add_text("c")
    assert stream.next_batch() is None


def test_after_a_rebuild_the_snapshot_comes_first_and_then_what_was_shown_meanwhile() -> None:
    stream = opened()
    stream.add_text("a")
    next_of(stream)
    text, tools = stream.snapshot()
    stream.add_text("b")
    stream.reopen(recorded("rebuild", 2, "snapshot", job_id=stream.job_id, text=text, tools=tools))
    first = next_of(stream)
    assert (first.epoch, first.base, said(first)) == (2, 0, ["a"])
    stream.acknowledge(first)
    second = next_of(stream)
    assert (second.epoch, second.base, said(second)) == (2, 1, ["b"])


def test_the_snapshot_of_a_second_rebuild_holds_what_was_shown_between_the_two() -> None:
    stream = opened()
    stream.add_text("a")
    stream.snapshot()
    stream.add_text("b")
    stream.reopen(recorded("rebuild", 2, "snapshot", job_id=stream.job_id, text="a", tools=[]))
    assert stream.snapshot() == ("ab", [])


def test_a_tool_note_that_changes_later_was_shown_as_it_was() -> None:
    stream = opened()
    shown = note()
    stream.add_tool(shown)
    shown["name"] = "changed"
    assert said(next_of(stream)) == [note()]


async def test_draining_ends_when_everything_shown_is_acknowledged() -> None:
    stream, _ = a_stream()
    stream.add_text("a")
    drained = asyncio.create_task(stream.drain())
    for _ in range(2):
        await asyncio.sleep(0)
        assert not drained.done()
        stream.acknowledge(next_of(stream))
    await asyncio.wait_for(drained, 1)


async def test_draining_waits_for_text_shown_while_the_last_batch_was_on_its_way() -> None:
    stream = opened()
    stream.add_text("a")
    sent = next_of(stream)
    stream.add_text("b")
    stream.acknowledge(sent)
    drained = asyncio.create_task(stream.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    stream.acknowledge(next_of(stream))
    await asyncio.wait_for(drained, 1)


async def test_draining_waits_for_a_rebuild() -> None:
    stream = opened()
    stream.add_text("a")
    next_of(stream)
    stream.snapshot()
    drained = asyncio.create_task(stream.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    stream.reopen(recorded("rebuild", 2, "snapshot", job_id=stream.job_id, text="a", tools=[]))
    stream.acknowledge(next_of(stream))
    await asyncio.wait_for(drained, 1)


async def test_closing_ends_the_wait_and_sends_nothing_more() -> None:
    stream, wakes = a_stream()
    stream.add_text("a")
    before = wakes.count
    stream.close()
    await asyncio.wait_for(stream.drain(), 1)
    stream.add_text("b")
    await asyncio.wait_for(stream.drain(), 1)
    assert stream.next_batch() is None
    assert wakes.count == before


def test_every_addition_wakes_the_writer() -> None:
    stream, wakes = a_stream()
    stream.add_text("a")
    stream.add_text("b")
    stream.add_tool(note())
    assert wakes.count == 3


def test_kept_rounds_are_said_right_after_the_opening_and_again_by_a_rebuild() -> None:
    stream = opened()
    stream.carry("a", [note()])
    stream.add_text("b")
    first, second = (orjson.loads(event) for event in next_of(stream).events)
    assert (first["kind"], first["text"], first["tools"]) == ("snapshot", "a", [note()])
    assert (second["kind"], second["text"]) == ("text", "b")
    assert stream.snapshot() == ("ab", [note()])
