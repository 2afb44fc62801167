"""What a client makes of the events it received."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.fold import Fold
from schemas.job_event import EventId

NOTE = {"id": "c", "name": "t", "status": "started"}


def said(*texts: str) -> dict[str, Any]:
    return {"response": [{"role": "assistant", "content": text} for text in texts]}


def folded(*events: Event) -> Fold:
    fold = Fold()
    for id_, kind, fields in events:
        fold.apply(EventId.parse(id_), {"kind": kind, **fields})
    return fold


Event = tuple[str, str, dict[str, Any]]
STARTED: list[Event] = [("0-1", "queued", {}), ("1-1", "started", {})]
HALF: list[Event] = [*STARTED, ("1-2", "text", {"text": "half "}), ("1-3", "tool", {"tool": NOTE})]


def test_text_is_appended_and_tool_calls_are_listed() -> None:
    fold = folded(*HALF, ("1-4", "text", {"text": "done"}))
    assert (fold.text, fold.tools, fold.terminal) == ("half done", [NOTE], None)


@pytest.mark.parametrize("kind", ["retrying", "requeued"])
def test_what_was_shown_stays_until_the_next_attempt_begins(kind: str) -> None:
    fold = folded(*HALF, ("2-1", kind, {}))
    assert fold.text == "half "
    fold.apply(EventId(3, 1), {"kind": "started"})
    assert (fold.text, fold.tools) == ("", [])


def test_a_snapshot_replaces_what_was_shown() -> None:
    fold = folded(
        *HALF, ("2-1", "snapshot", {"text": "half an", "tools": [NOTE, NOTE]}), ("2-2", "text", {"text": "s"})
    )
    assert (fold.text, fold.tools) == ("half ans", [NOTE, NOTE])


def test_a_snapshots_tools_are_not_shared_with_the_event() -> None:
    tools = [NOTE]
    fold = folded(("1-1", "snapshot", {"text": "", "tools": tools}), ("1-2", "tool", {"tool": NOTE}))
    assert (len(fold.tools), len(tools)) == (2, 1)


@pytest.mark.parametrize("kind", ["final", "cancelled"])
def test_the_end_is_right_whatever_was_missed(kind: str) -> None:
    tool = {"role": "tool", "content": "not shown", "tool_call_id": "c"}
    end = {"response": [*said("a")["response"], tool, *said("b")["response"]]}
    for before in ([], STARTED, HALF):
        fold = folded(*before, ("2-1", kind, end))
        assert fold.text == "ab"
        assert fold.terminal is not None
        assert fold.terminal["kind"] == kind


def test_a_failure_leaves_no_text() -> None:
    fold = folded(*HALF, ("2-1", "failed", {"error": {}}))
    assert fold.text == ""
    assert fold.terminal is not None


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (("queued", {}), ""),
        (("started", {}), ""),
        (("snapshot", {"text": "so far", "tools": []}), "so far"),
        (("text", {"text": "on"}), "on"),
        (("retrying", {}), ""),
    ],
)
def test_whatever_follows_an_end_is_of_a_redrive(event: tuple[str, dict[str, Any]], text: str) -> None:
    fold = folded(*HALF, ("2-1", "final", said("answer")), ("9-1", *event))
    assert (fold.text, fold.terminal) == (text, None)


def test_an_end_may_follow_an_end() -> None:
    fold = folded(("2-1", "failed", {}), ("5-1", "final", said("answer")))
    assert fold.text == "answer"
    assert fold.terminal is not None
    assert fold.terminal["kind"] == "final"


@given(st.data())
def test_events_fed_again_or_late_change_nothing(data: st.DataObject) -> None:
    events = [*HALF, ("2-1", "snapshot", {"text": "half an", "tools": []}), ("2-2", "text", {"text": " x"})]
    whole = folded(*events)
    resumed = Fold()
    for number, (id_, kind, fields) in enumerate(events):
        assert resumed.apply(EventId.parse(id_), {"kind": kind, **fields})
        earlier = data.draw(st.lists(st.integers(0, number), max_size=3))
        for place in earlier:
            again = events[place]
            assert not resumed.apply(EventId.parse(again[0]), {"kind": again[1], **again[2]})
    assert resumed == whole
