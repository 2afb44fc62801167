"""What a handler yields while it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic refuses the one in typing before Python 3.12

from schemas.agent_message import AgentMessage, Usage

Outcome = Literal["ok", "blocked", "step_limit"]


class ToolNote(TypedDict):
    """A tool call that started or finished, as clients are told of it."""

    id: str
    name: str
    status: Literal["started", "finished"]
    args: NotRequired[dict[str, Any]]
    result: NotRequired[str]
    is_error: NotRequired[bool]


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One step of an answer.

    `text`: append `text`. `tool`: a call started or finished. `final`: the last one; `response` is what `invoke()`
    would have returned first, and the `text` events before it, joined, equal its assistant messages' content, joined.
    """

    kind: Literal["text", "tool", "final"]
    text: str = ""
    tool: ToolNote | None = None
    response: list[AgentMessage] | None = None
    usage: Usage | None = None
    #: Only on `final`: how the answer ended.
    outcome: Outcome = "ok"
