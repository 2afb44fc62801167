"""What earlier attempts of a job have done, as the next attempt is given it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.agent_message import AgentMessage, ToolCall, Usage

#: What the model is told of a call of which only the beginning is known.
IN_DOUBT = (
    "The outcome of this call is unknown: it was started, and then the program that ran it was stopped. It may have "
    "taken effect, wholly, in part or not at all. It was not repeated. Assume neither that it worked nor that it "
    "failed: check with another tool if you can, and otherwise tell the user that the outcome is not known."
)


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of a tool that writes, begun in a round that was never finished."""

    #: Its key in the ledger, and the idempotency key its tool is given.
    key: str
    call_id: str
    name: str
    args: dict[str, Any]
    #: What it returned; None if nobody knows whether it ran.
    result: str | None = None
    is_error: bool = False

    @property
    def asked(self) -> ToolCall:
        """The call as the model asked for it."""
        return ToolCall(id=self.call_id, name=self.name, args=self.args)


@dataclass(frozen=True, slots=True)
class Progress:
    """The finished rounds of an answer, and the calls of the round that was cut off."""

    #: How many rounds are finished; each is an assistant message and all results of its calls.
    rounds: int = 0
    #: The messages of these rounds, in order.
    messages: tuple[AgentMessage, ...] = ()
    #: Tokens of the model calls up to here; None if the provider did not say.
    usage: Usage | None = None
    #: In the order in which they began.
    open_calls: tuple[OpenCall, ...] = ()

    def closed(self) -> list[AgentMessage]:
        """All of it as messages in which every call has a result, for an answer that nobody will continue."""
        messages = list(self.messages)
        if self.open_calls:
            messages.append(AgentMessage.assistant("", [call.asked for call in self.open_calls]))
        for call in self.open_calls:
            result = IN_DOUBT if call.result is None else call.result
            messages.append(AgentMessage(role="tool", content=result, tool_call_id=call.call_id))
        return messages


NO_PROGRESS = Progress()
