"""The conversation an agent is sent: what came before, in a form every provider takes, and the new message."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from handlers.prompts import with_instructions
from schemas.agent_message import ChatMessage
from schemas.agent_session import AgentSession
from schemas.errors import AgentInvocationError

#: What a model is told of a call whose result was never saved, for instance because the answer was stopped.
OPEN_CALL_RESULT = "There is no result: the answer was stopped here. Whether the tool had run is not known."

#: Characters of a token: about four in English, about one and a half in scripts that are not Latin. Rather too few
#: tokens than too many, since what really is too long the provider refuses, and what is not must not be refused here.
_ASCII_PER_TOKEN = 4.5
_OTHER_PER_TOKEN = 1.5
_TOKENS_PER_MESSAGE = 4


async def read_conversation(session: AgentSession, user_message: str, reply_to: str | None) -> list[ChatMessage]:
    """Everything the model is sent, the system prompt first and the user's message last.

    Raises AgentInvocationError, not to be retried, if it cannot fit into the model's context window.
    """
    history = sendable(await session.read_history(reply_to))
    conversation = with_instructions(session, [*history, ChatMessage(role="user", content=user_message)])
    _check_fits(session, conversation)
    return conversation


def sendable(history: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The history without assistant turns that say nothing, and with a result for every call."""
    messages: list[ChatMessage] = []
    open_calls: list[str] = []
    for message in history:
        if message.role == "tool":
            if message.tool_call_id in open_calls:
                open_calls.remove(message.tool_call_id)
                messages.append(message)
            continue  # a result without its call is nothing a provider takes
        messages += _closed(open_calls)
        open_calls = [call["id"] for call in message.tool_calls or ()]
        if message.role != "assistant" or message.content or message.tool_calls:
            messages.append(message)
    return messages + _closed(open_calls)


def estimated_tokens(text: str) -> float:
    """Roughly how many tokens a text is, without the vocabulary of any model."""
    ascii_count = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    return ascii_count / _ASCII_PER_TOKEN + (len(text) - ascii_count) / _OTHER_PER_TOKEN


def _closed(open_calls: Sequence[str]) -> list[ChatMessage]:
    return [ChatMessage(role="tool", content=OPEN_CALL_RESULT, tool_call_id=call_id) for call_id in open_calls]


def _check_fits(session: AgentSession, conversation: Sequence[ChatMessage]) -> None:
    window = session.model_target.context_window if session.model_target is not None else None
    if window is None:
        return
    tokens = round(sum(_tokens_of(message) for message in conversation))
    reserved = session.parameters.max_tokens or 0
    if tokens + reserved > window:
        kept = f" and {reserved} are kept for the answer" if reserved else ""
        raise AgentInvocationError(
            f"the conversation is about {tokens} tokens long{kept}, but the model's window holds {window}",
            code="too_long",
            retryable=False,
        )


def _tokens_of(message: ChatMessage) -> float:
    calls = orjson.dumps(message.tool_calls, default=str).decode() if message.tool_calls else ""
    return estimated_tokens(message.content) + estimated_tokens(calls) + _TOKENS_PER_MESSAGE
