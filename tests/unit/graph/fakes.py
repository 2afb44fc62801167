"""A model that plays chunks, for tests of the graph alone; the whole path is tested against the demo server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.runnables import Runnable, RunnableConfig


class FakeModel(Runnable[LanguageModelInput, AIMessage]):
    """Plays one list of chunks, or raises one error, for each call; keeps what it was sent."""

    def __init__(self, *replies: Sequence[AIMessageChunk] | Exception) -> None:
        self._replies = list(replies)
        self.prompts: list[Any] = []
        self.options: list[dict[str, Any]] = []

    def invoke(self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:  # noqa: A002
        raise NotImplementedError

    async def astream(
        self,
        input: LanguageModelInput,  # noqa: A002 - the parent's name for it
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessage]:
        self.prompts.append(input)
        self.options.append(kwargs)
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        for chunk in reply:
            await asyncio.sleep(0)
            yield chunk


def says(text: str, reason: str = "stop") -> list[AIMessageChunk]:
    words = [AIMessageChunk(content=word) for word in text.split(" ")]
    return [*words, AIMessageChunk(content="", response_metadata={"finish_reason": reason})]


def asks(*calls: tuple[str, str], reason: str = "tool_calls") -> list[AIMessageChunk]:
    """A reply that calls tools, each given as (name, arguments as they stand in the stream)."""
    pieces: list[Any] = [
        {"name": name, "args": arguments, "id": f"id{place}", "index": place, "type": "tool_call_chunk"}
        for place, (name, arguments) in enumerate(calls)
    ]
    return [
        AIMessageChunk(content="", tool_call_chunks=pieces),
        AIMessageChunk(content="", response_metadata={"finish_reason": reason}),
    ]
