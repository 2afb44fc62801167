"""What is printed of an answer while it is made."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import orjson
import pytest

from cli.answer import AGAIN, AnswerPrinter, JsonPrinter, tool_note
from cli.safe_text import safe_text
from cli.screen import Screen
from schemas.fold import Fold
from schemas.job_event import EventId
from tests.unit.cli.event_logs import LogBuilder, answer, error, random_log, short_log, tool

Log = Iterable[tuple[EventId, Mapping[str, Any]]]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def printed(log: Log, *, after: EventId | None = None, out: io.StringIO | None = None) -> tuple[str, str]:
    """stdout and stderr once all events of the log have been shown."""
    out, err = out or io.StringIO(), io.StringIO()
    printer, fold = AnswerPrinter(Screen(out, err), after=after), Fold()
    for event_id, event in log:
        fold.apply(event_id, dict(event))
        printer.show(event_id, dict(event), fold)
    return out.getvalue(), err.getvalue()


def last_answer(output: str) -> str:
    """What stands behind the last mark that the answer began again."""
    return output.split(f"{AGAIN}\n")[-1]


def test_what_stands_there_at_the_end_is_the_fold() -> None:
    for seed in range(300):
        log, fold = random_log(Random(seed)), Fold()
        for entry in log:
            fold.apply(*entry)
        output, _ = printed(log)
        if log[-1][1]["kind"] == "failed":
            continue  # the partial text stays on the screen; the note and the exit code say what it is worth
        expected = safe_text(fold.text)
        line_end = "" if not expected or expected.endswith("\n") else "\n"
        assert last_answer(output) == expected + line_end, seed


def test_the_text_alone_goes_to_stdout() -> None:
    assert printed(short_log("Hello there.")) == ("Hello there.\n", "")


def test_tool_calls_are_notes_of_one_line() -> None:
    log = LogBuilder()
    log.opens("started", attempt=1, worker="w")
    log.adds("text", text="Let me see. ")
    log.adds("tool", tool=tool("started"))
    log.adds("tool", tool=tool("finished"))
    log.adds("text", text="It is 2.")
    assert printed(log.log) == ("Let me see. It is 2.", '[calculator {"n":1}]\n[calculator: 2]\n')


def test_on_a_terminal_a_note_stands_on_a_line_of_its_own() -> None:
    log = LogBuilder()
    log.opens("started", attempt=1, worker="w")
    log.adds("text", text="Let me see.")
    log.adds("tool", tool=tool("started"))
    log.adds("text", text="Done")
    output, _ = printed(log.log, out=Terminal())
    assert output == "Let me see.\nDone"


def test_a_new_attempt_is_announced_and_printed_anew() -> None:
    log = LogBuilder()
    log.opens("started", attempt=1, worker="w")
    log.adds("text", text="Half an ans")
    log.opens("retrying", error=error(), retry_at="2026-11-30T12:00:02.000Z")
    log.opens("started", attempt=2, worker="w")
    log.adds("text", text="A whole answer")
    output, notes = printed(log.log)
    assert output == f"Half an ans\n{AGAIN}\nA whole answer"
    assert notes == "[the attempt failed: the model's server failed; another follows]\n"


def test_a_second_attempt_before_any_text_is_not_announced() -> None:
    log = LogBuilder()
    log.opens("started", attempt=1, worker="w")
    log.opens("started", attempt=2, worker="w")
    log.adds("text", text="Hello")
    assert printed(log.log)[0] == "Hello"


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [("One two three", "One two three"), ("One two", "One two"), ("Other", f"One two\n{AGAIN}\nOther")],
)
def test_a_snapshot_adds_what_is_missing_or_replaces_what_was_shown(snapshot: str, expected: str) -> None:
    log = LogBuilder()
    log.opens("started", attempt=1, worker="w")
    log.adds("text", text="One two")
    log.opens("snapshot", text=snapshot, tools=[])
    assert printed(log.log)[0] == expected


def test_the_end_brings_the_text_that_a_lost_log_did_not() -> None:
    log = LogBuilder()
    log.opens("started", attempt=1, worker="w")
    log.adds("text", text="One ")
    log.opens("final", outcome="ok", response=[answer("One two")], usage=None, message_ids=["m"])
    assert printed(log.log)[0] == "One two\n"


@pytest.mark.parametrize(
    ("kind", "fields", "note"),
    [
        ("failed", {"error": error(), "dead_letter_id": "d"}, "failed: the model's server failed (provider_error)"),
        ("cancelled", {"reason": "requested", "response": [], "message_ids": []}, "[cancelled: requested]"),
        ("requeued", {"reason": "shutdown"}, "[the worker stops (shutdown); another one takes over]"),
        (
            "final",
            {"outcome": "step_limit", "response": [], "usage": None, "message_ids": []},
            "[the answer ended at the limit of steps]",
        ),
    ],
)
def test_what_happens_to_the_job_is_noted(kind: str, fields: dict[str, Any], note: str) -> None:
    log = LogBuilder()
    log.opens("started", attempt=1, worker="w")
    log.opens(kind, **fields)
    assert printed(log.log) == ("", f"{note}\n")


def test_what_was_seen_before_the_cursor_is_not_printed_again() -> None:
    log = short_log("One two three")
    assert printed(log, after=log[3][0])[0] == " three\n"
    assert printed(log, after=log[-2][0])[0] == ""


def test_a_redriven_job_begins_again_behind_its_failure() -> None:
    log = LogBuilder()
    log.opens("started", attempt=1, worker="w")
    log.adds("text", text="Half")
    log.opens("failed", error=error(), dead_letter_id="d")
    log.opens("queued", queue="chat", session_id="s")
    log.opens("started", attempt=2, worker="w")
    log.adds("text", text="Whole")
    assert printed(log.log)[0] == f"Half\n{AGAIN}\nWhole"


def test_nothing_of_a_model_reaches_the_terminals_controls() -> None:
    log = LogBuilder()
    log.opens("started", attempt=1, worker="w")
    log.adds("text", text="safe\x1b")
    log.adds("text", text="[31m words\x07")
    log.adds("tool", tool={"id": "t", "name": "x\x1b[2J", "status": "finished", "result": "\x1b]0;t\x07ok"})
    assert printed(log.log) == ("safe words", "[x: ok]\n")


def test_json_lines_carry_every_event_as_it_is_with_its_id() -> None:
    out = io.StringIO()
    printer, fold = JsonPrinter(Screen(out, io.StringIO())), Fold()
    log = short_log("\x1b[31mred")
    for event_id, event in log:
        fold.apply(event_id, event)
        printer.show(event_id, event, fold)
    lines = [orjson.loads(line) for line in out.getvalue().splitlines()]
    assert lines == [{"id": str(event_id), **event} for event_id, event in log]


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({"status": "started"}, "[t]"),
        ({"status": "started", "args": {}}, "[t]"),
        ({"status": "finished"}, "[t: done]"),
        ({"status": "finished", "result": "no", "is_error": True}, "[t failed: no]"),
    ],
)
def test_a_tool_note_says_what_is_known(given: dict[str, Any], note: str) -> None:
    assert tool_note({"id": "1", "name": "t", **given}) == note
