"""Readers are told of tool calls in few words."""

from __future__ import annotations

import orjson

from graph.tool_notes import MAX_SHOWN, finished_note, started_note
from schemas.agent_message import ToolCall
from schemas.tool import ToolResult

CALL = ToolCall(id="a", name="f", args={"x": 1})


def test_a_started_call_is_told_with_its_arguments() -> None:
    assert started_note(CALL) == {"id": "a", "name": "f", "status": "started", "args": {"x": 1}}


def test_a_finished_call_is_told_with_its_result() -> None:
    note = finished_note(CALL, ToolResult("no", is_error=True))

    assert note == {"id": "a", "name": "f", "status": "finished", "result": "no", "is_error": True}


def test_long_arguments_and_results_are_cut() -> None:
    call = ToolCall(id="a", name="f", args={"x": "y" * 1_000_000})

    started, finished = started_note(call), finished_note(call, ToolResult("z" * 5_000_000))

    assert len(orjson.dumps(started)) < 2 * MAX_SHOWN
    assert len(orjson.dumps(finished)) < 2 * MAX_SHOWN
    assert "characters left out" in finished.get("result", "")
