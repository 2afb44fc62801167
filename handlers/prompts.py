"""What an agent is told before the conversation begins."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from graph.prompts import DEFAULT_SYSTEM_PROMPT
from schemas.agent_message import ChatMessage
from schemas.agent_session import AgentSession

__all__ = ["DEFAULT_SYSTEM_PROMPT", "with_instructions"]


def with_instructions(session: AgentSession, conversation: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The conversation with one system message at its head.

    It holds the session's system prompt and those the conversation begins with; the default one only if the caller gave
    none anywhere; and a line that asks for the session's language.
    """
    own = [message.content for message in takewhile(lambda message: message.role == "system", conversation)]
    parts = [session.system, *own] if session.system is not None else [*own]
    if not parts and not any(message.role == "system" for message in conversation):
        parts = [DEFAULT_SYSTEM_PROMPT]
    if session.language:
        parts.append(f"Answer in the language with the code {session.language}, unless the user asks for another.")
    head = [ChatMessage(role="system", content="\n\n".join(parts))] if parts else []
    return [*head, *conversation[len(own) :]]
