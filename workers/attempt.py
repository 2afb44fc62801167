"""One attempt: the handler runs, what it shows goes to the log, and however it ends, it is settled once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from enum import IntEnum
from typing import Any

import structlog
from pydantic import TypeAdapter

from handlers.base import BaseAgentHandler
from schemas.agent_message import AgentMessage, Usage, add_usage, joined_text
from schemas.border_text import TextRepair, clean_json
from schemas.errors import (
    AgentInvocationError,
    JobError,
    MalformedRequest,
    StreamMismatch,
    TransitionRefused,
)
from schemas.progress import NO_PROGRESS
from schemas.stream_event import Outcome, ToolNote
from storage.jobs.claim import Claim
from storage.jobs.move import AttemptRecord
from workers.ending import Answer, Answered, Cancelled, Ending, Failed, Lost, Released, failed_with
from workers.job_stream import JobStream
from workers.partial_answer import PartialAnswer

#: How long a handler may take to let go, once its attempt is decided, before it is left behind; the fence keeps it from
#: writing.
LET_GO_S = 5.0

_TOOL_NOTE = TypeAdapter(ToolNote)

logger = structlog.get_logger(__name__)


class StopReason(IntEnum):
    """Why an attempt is stopped from outside; a higher one overrules a lower one."""

    SHUTDOWN = 1
    DEADLINE = 2
    CANCEL = 3
    #: Somebody else holds the job: nothing may be written any more.
    LOST = 4


class Attempt:
    """One execution of a job by this worker."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.stop_reason: StopReason | None = None
        self.cancel_reason = ""
        self.partial = PartialAnswer()
        self._carried = NO_PROGRESS
        self._work: asyncio.Task[None] | None = None
        self._answer: Answer | None = None
        #: Done once the attempt is stopped or its answer complete: only the handler's letting go is waited for then.
        self._decided = asyncio.get_running_loop().create_future()

    @property
    def held(self) -> tuple[str, int]:
        """What its lease is renewed by."""
        return self.claim.job_id, self.claim.attempt

    def stop(self, reason: StopReason, detail: str = "") -> None:
        """Stop the attempt. The reason is set before the coroutine is cancelled, so that it is there to be read."""
        if self.stop_reason is None or reason > self.stop_reason:
            self.stop_reason = reason
            self.cancel_reason = detail
        self._decide()
        if self._work is not None:
            self._work.cancel()

    async def run(
        self, make_handler: Callable[[], Awaitable[BaseAgentHandler]], stream: JobStream, timeout_s: float
    ) -> Ending:
        """Let the handler answer; returns how that ended. Never raises, and always comes back soon after `stop`."""
        work = self._work = asyncio.create_task(
            self._listen(make_handler, stream, timeout_s), name=f"attempt-{self.claim.job_id}"
        )
        work.add_done_callback(_look_at)
        if self.stop_reason is not None:
            work.cancel()
        try:
            # A handler that ignores its time limit is given up as well.
            await asyncio.wait([work, self._decided], timeout=timeout_s + LET_GO_S, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # The loop is going down without an orderly shutdown: the job goes back.
            self.stop(StopReason.SHUTDOWN)
        if self._decided.done() and not work.done():
            await asyncio.wait([work], timeout=LET_GO_S)
        if not work.done():
            logger.error("the handler does not let go", framework=self.claim.agent_framework)
            work.cancel()
        return self._ending(work)

    async def _listen(
        self, make_handler: Callable[[], Awaitable[BaseAgentHandler]], stream: JobStream, timeout_s: float
    ) -> None:
        """Show what the handler says until its answer is complete; raises if it has none."""
        repair = TextRepair()
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                handler = await make_handler()
                self._carry(handler, stream)
                async with aclosing(handler.astream_events(self.claim.user_message)) as events:
                    async for event in events:
                        if event.kind == "text":
                            self._show(repair.feed(event.text), stream)
                            continue
                        self._show(repair.flush(), stream)
                        if event.kind == "tool":
                            tool: ToolNote = _storable(_TOOL_NOTE.validate_python(event.tool))
                            stream.add_tool(tool)
                            self.partial.add_tool(tool)
                        elif event.kind == "final":
                            self._answer = self._checked(event.response, event.usage, event.outcome)
                            self._decide()
                            return
        except TimeoutError:
            if not limit.expired():
                raise
            raise AgentInvocationError(f"the agent did not answer within {timeout_s:g} s", code="timeout") from None
        except (SystemExit, KeyboardInterrupt) as error:
            # On the event loop these would end the whole worker.
            raise RuntimeError(f"the agent raised {type(error).__name__}") from error
        raise AgentInvocationError("the agent ended without an answer", code="no_answer")

    def _carry(self, handler: BaseAgentHandler, stream: JobStream) -> None:
        """Show what earlier attempts have kept, if the handler goes on from there."""
        self._carried = handler.session.progress
        if self._carried.rounds:
            self.partial.carry(self._carried.messages)
            stream.carry(self.partial.text, self.partial.tools)

    def _decide(self) -> None:
        if not self._decided.done():
            self._decided.set_result(None)

    def _show(self, text: str, stream: JobStream) -> None:
        if text:
            self.partial.add_text(text)
            stream.add_text(text)

    def _checked(self, response: list[AgentMessage] | None, usage: Usage | None, outcome: Outcome) -> Answer:
        if not response:
            raise AgentInvocationError("the agent answered with no message", code="no_answer")
        new = [AgentMessage.model_validate(_storable(message.to_json())) for message in response]
        response = [*self._carried.messages, *new]
        if joined_text(response) != self.partial.text:
            raise StreamMismatch
        return Answer(response, add_usage(self._carried.usage, usage), outcome)

    def _ending(self, work: asyncio.Task[None]) -> Ending:
        """What to do with the job. An answer that was complete before the stop came is kept."""
        if self.stop_reason is StopReason.LOST:
            return Lost()
        if self._answer is not None:
            return Answered(self._answer)
        error = work.exception() if work.done() and not work.cancelled() else None
        if isinstance(error, TransitionRefused):
            return Lost()
        record = AttemptRecord(shown_text=self.partial.text, shown_tools=tuple(self.partial.tools))
        match self.stop_reason:
            case StopReason.CANCEL:
                return Cancelled(self.cancel_reason, self.partial.messages(), record)
            case StopReason.DEADLINE:
                late = JobError(code="deadline", message="the deadline passed while it was answered", retryable=False)
                return Failed(late, True, None, self.partial.messages(), record)
            case StopReason.SHUTDOWN:
                return Released(self.partial.messages(), record)
        return failed_with(error, self.partial, record)


def _storable(value: Any) -> Any:
    try:
        return clean_json(value)
    except MalformedRequest as error:
        raise AgentInvocationError(f"the agent said what cannot be stored: {error}", code="unstorable") from None


def _look_at(work: asyncio.Task[None]) -> None:
    """Take note of the error of a handler that was left behind: nobody else does."""
    if not work.cancelled():
        work.exception()
