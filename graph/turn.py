"""What becomes of one reply of the model: shown to the reader, and kept in the graph's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from graph.reply import Reply
from graph.state import AgentState
from schemas.errors import AgentInvocationError
from schemas.stream_event import StreamEvent

#: Rounds of one answer whose calls cannot be read, after which the model is given up on; it is told the first time.
MAX_INVALID_ROUNDS = 2
#: Graph steps that must be left after a reply with calls: its tools, the reply that reads their results, and one in
#: which LangGraph, counting before it looks, finds that nothing is left to do.
STEPS_OF_A_ROUND = 3

BLOCKED_TEXT = "The model provider's content filter withheld this answer."
STEP_LIMIT_TEXT = "I stopped here: this answer needs more steps than it is allowed."
STEP_LIMIT_RESULT = "Not run: the answer had reached its limit of steps."

#: Finish reasons by which servers say that something went wrong, or that something was not to be said.
_FAILED = frozenset({"error", "abort", "aborted", "cancelled", "insufficient_system_resource", "network_error"})
_BLOCKED = frozenset({"content_filter", "safety", "prohibited_content", "sensitive"})


class Turn:
    """One model call within an answer."""

    def __init__(self, state: AgentState, system_prompt: str, emit: Callable[[StreamEvent], None]) -> None:
        self._state = state
        self._messages: Sequence[AnyMessage] = state["messages"]
        self._system_prompt = system_prompt
        self._emit = emit

    def prompt(self) -> list[AnyMessage]:
        """What the model is sent: the conversation, with the system prompt first if it has none of its own."""
        if any(isinstance(message, SystemMessage) for message in self._messages):
            return list(self._messages)
        return [SystemMessage(self._system_prompt), *self._messages]

    def show(self, text: str) -> None:
        """Let the reader see a piece of text."""
        if text:
            self._emit(StreamEvent("text", text=text))

    def finish(self, reply: Reply) -> dict[str, Any]:
        """The state's update for a reply that has ended. Raises AgentInvocationError if it is not a whole one."""
        if reply.refusal or (reply.finish_reason or "").lower() in _BLOCKED:
            return self.blocked(reply)
        _check_whole(reply)
        if reply.has_calls:
            return self._ask_for_tools(reply)
        return {"messages": [AIMessage(reply.text)], "usage": reply.usage, "outcome": "ok"}

    def blocked(self, reply: Reply) -> dict[str, Any]:
        """The update for a reply that the provider or the model withheld; a sentence stands in its place."""
        sentence = self._say_at_end(reply, reply.refusal or BLOCKED_TEXT)
        return {"messages": [AIMessage(reply.text + sentence)], "usage": reply.usage, "outcome": "blocked"}

    def _ask_for_tools(self, reply: Reply) -> dict[str, Any]:
        earlier = [message for message in self._messages if isinstance(message, AIMessage)]
        used_ids = {call["id"] or "" for message in earlier for call in message.tool_calls}
        calls, invalid = reply.calls(used_ids, stem=str(len(earlier)))
        invalid_rounds = self._state.get("invalid_rounds", 0) + bool(invalid)
        if invalid_rounds >= MAX_INVALID_ROUNDS:
            raise AgentInvocationError("the model's tool calls cannot be read", code="invalid_tool_call")
        asked = AIMessage(reply.text, tool_calls=[{**call, "type": "tool_call"} for call in calls])
        if self._state["remaining_steps"] < STEPS_OF_A_ROUND:
            return self._stop_at_limit(reply, asked)
        return {
            "messages": [asked],
            "usage": reply.usage,
            "reply_usage": reply.usage,
            "invalid_calls": invalid,
            "invalid_rounds": invalid_rounds,
        }

    def _stop_at_limit(self, reply: Reply, asked: AIMessage) -> dict[str, Any]:
        # Running these tools would leave no step to read their results, and perhaps change the world for nothing.
        closed = [ToolMessage(STEP_LIMIT_RESULT, tool_call_id=call["id"]) for call in asked.tool_calls]
        sentence = self._say_at_end(reply, STEP_LIMIT_TEXT)
        return {"messages": [asked, *closed, AIMessage(sentence)], "usage": reply.usage, "outcome": "step_limit"}

    def _say_at_end(self, reply: Reply, sentence: str) -> str:
        """Show a sentence after whatever the reader has seen of this answer; returns it as it was shown."""
        shown = f"\n\n{sentence}" if reply.text or self._has_spoken() else sentence
        self.show(shown)
        return shown

    def _has_spoken(self) -> bool:
        for message in reversed(self._messages):
            if isinstance(message, HumanMessage):
                return False
            if isinstance(message, AIMessage) and message.content:
                return True
        return False


def _check_whole(reply: Reply) -> None:
    reason = reply.finish_reason
    if reason in _FAILED:
        raise AgentInvocationError("the model's server broke off its answer", code="provider_error")
    if reply.has_calls:
        return
    if reason in ("tool_calls", "function_call"):
        raise AgentInvocationError("the model announced tool calls and sent none", code="provider_error")
    if reason == "length" and not reply.text:
        raise AgentInvocationError("the model used up its tokens before it said anything", code="no_answer")
