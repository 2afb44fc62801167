"""Tool calls as readers are told of them: short, whatever the tool was given or gave back."""

from __future__ import annotations

from typing import Any

import orjson

from schemas.agent_message import ToolCall
from schemas.capped_text import capped_text
from schemas.stream_event import ToolNote
from schemas.tool import ToolResult

#: Characters of a call's arguments, and of its result, in an event; the model and the saved message get more.
MAX_SHOWN = 4096


def started_note(call: ToolCall) -> ToolNote:
    """The note that a call has begun."""
    return ToolNote(id=call["id"], name=call["name"], status="started", args=_shown_args(call["args"]))


def finished_note(call: ToolCall, result: ToolResult) -> ToolNote:
    """The note that a call has ended, well or not."""
    return ToolNote(
        id=call["id"],
        name=call["name"],
        status="finished",
        result=capped_text(result.text, MAX_SHOWN),
        is_error=result.is_error,
    )


def _shown_args(args: dict[str, Any]) -> dict[str, Any]:
    """The arguments, or their beginning as one string if they are too long."""
    text = orjson.dumps(args, default=str).decode()
    return args if len(text) <= MAX_SHOWN else {"…": capped_text(text, MAX_SHOWN)}
