"""An attempt whose handler plays what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, cast

from handlers.base import BaseAgentHandler
from schemas.agent_message import AgentMessage, Usage
from schemas.agent_session import AgentSession
from schemas.stream_event import StreamEvent, ToolNote
from tests.unit.workers.claims import a_claim
from workers.attempt import Attempt
from workers.ending import Ending, Failed
from workers.job_stream import JobStream

Events = AsyncGenerator[StreamEvent, None]
Play = Callable[[BaseAgentHandler], Events]


class HomeMade(Exception):
    """An error of an agent's own."""


class Scripted(BaseAgentHandler):
    """Answers with what a test plays."""

    def __init__(self, play: Play) -> None:
        super().__init__(AgentSession(session_id="s"))
        self._play = play

    def invoke(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> tuple[list[AgentMessage], Usage | None]:
        raise NotImplementedError

    def astream(self, user_message: str) -> AsyncGenerator[tuple[str, Usage | None], None]:
        raise NotImplementedError

    def astream_events(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> Events:
        return self._play(self)


class Running:
    """An attempt that runs, and the stream it shows on."""

    def __init__(self, play: Play, *, timeout_s: float = 5) -> None:
        self.attempt = Attempt(a_claim())
        self.stream = JobStream(self.attempt.claim.recorded, lambda stream: None)
        self.shown = asyncio.Event()

        async def make() -> Scripted:
            return Scripted(play)

        self.task = asyncio.create_task(self.attempt.run(make, self.stream, timeout_s))

    async def ending(self) -> Ending:
        async with asyncio.timeout(5):
            return await self.task

    async def until_shown(self, text: str) -> None:
        async with asyncio.timeout(5):
            while self.stream.text != text:  # noqa: ASYNC110 - one turn of the loop at a time
                await asyncio.sleep(0)


async def end_of(play: Play, **named: Any) -> Ending:
    return await Running(play, **named).ending()


async def failure_of(play: Play, **named: Any) -> Failed:
    ending = await end_of(play, **named)
    assert isinstance(ending, Failed)
    return ending


def say(*pieces: str) -> list[StreamEvent]:
    return [StreamEvent("text", text=piece) for piece in pieces]


def final(text: str, **named: Any) -> StreamEvent:
    return StreamEvent("final", response=[AgentMessage.assistant(text)], **named)


def tool(status: Any = "started", **named: Any) -> StreamEvent:
    return StreamEvent("tool", tool=cast(ToolNote, {"id": "c", "name": "clock", "status": status, **named}))


def plays(*events: StreamEvent | BaseException) -> Play:
    """Yield events, raise errors."""

    async def play(handler: BaseAgentHandler) -> Events:
        for event in events:
            if isinstance(event, BaseException):
                raise event
            yield event

    return play


def says_and_waits(*pieces: str) -> Play:
    async def play(handler: BaseAgentHandler) -> Events:
        for event in say(*pieces):
            yield event
        await asyncio.Event().wait()

    return play
