"""What an attempt has shown so far, as messages that could be saved: the answer of a job that is stopped midway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graph.tool_notes import finished_note, started_note
from schemas.agent_message import AgentMessage, ToolCall, joined_text
from schemas.stream_event import ToolNote
from schemas.tool import ToolResult

#: What the saved history says of a call that was stopped: every call needs a result, or the next turn is refused.
STOPPED_RESULT = "The call was stopped before it returned a result."


@dataclass(slots=True)
class _Round:
    """One assistant message with the calls it asked for."""

    text: list[str] = field(default_factory=list)
    calls: dict[str, ToolCall] = field(default_factory=dict)
    results: dict[str, str] = field(default_factory=dict)


class PartialAnswer:
    """Built from the events of the attempt; text after a finished call begins the next assistant message."""

    def __init__(self) -> None:
        self.tools: list[ToolNote] = []
        self._carried: list[AgentMessage] = []
        self._rounds = [_Round()]

    @property
    def text(self) -> str:
        """All text shown, joined."""
        return joined_text(self._carried) + "".join(piece for one in self._rounds for piece in one.text)

    def carry(self, messages: Sequence[AgentMessage]) -> None:
        """Begin with the finished rounds of earlier attempts."""
        self._carried = list(messages)
        calls = {call["id"]: call for message in messages for call in message.tool_calls or ()}
        for message in messages:
            self.tools += [started_note(call) for call in message.tool_calls or ()]
            if message.role == "tool" and (call := calls.get(message.tool_call_id or "")) is not None:
                self.tools.append(finished_note(call, ToolResult(message.content)))

    def add_text(self, text: str) -> None:
        if self._rounds[-1].results:
            self._rounds.append(_Round())
        self._rounds[-1].text.append(text)

    def add_tool(self, note: ToolNote) -> None:
        self.tools.append(note)
        current = self._rounds[-1]
        if note["status"] == "started":
            if current.calls and len(current.results) == len(current.calls):
                current = _Round()
                self._rounds.append(current)
            current.calls[note["id"]] = ToolCall(id=note["id"], name=note["name"], args=note.get("args", {}))
            return
        for one in reversed(self._rounds):
            if note["id"] in one.calls.keys() - one.results.keys():
                one.results[note["id"]] = note.get("result", "")
                return

    def messages(self) -> list[AgentMessage]:
        """The messages shown so far, every call with a result; empty if nothing was shown."""
        messages = list(self._carried)
        for one in self._rounds:
            text, calls = "".join(one.text), list(one.calls.values())
            if not text and not calls:
                continue
            messages.append(AgentMessage.assistant(text, calls))
            messages.extend(
                AgentMessage(role="tool", content=one.results.get(call["id"], STOPPED_RESULT), tool_call_id=call["id"])
                for call in calls
            )
        return messages
