"""One attempt: the handler runs, what it shows goes to the log, and however it ends, it is settled once."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import structlog

from handlers.base import BaseAgentHandler
from schemas.agent_message import AgentMessage, Usage, joined_text
from schemas.border_text import TextRepair, clean_json
from schemas.errors import (
    AgentInvocationError,
    ChatmillError,
    JobError,
    RequestError,
    StreamMismatch,
    TransitionRefused,
)
from schemas.stream_event import Outcome, ToolNote
from storage.jobs.claim import Claim
from storage.jobs.settle import AttemptRecord
from workers.job_stream import JobStream
from workers.partial_answer import PartialAnswer

#: How long a cancelled handler may take to let go before it is left behind; the fence keeps it from writing.
LET_GO_S = 5.0
#: What is kept of a traceback: enough to find the place.
TRACE_MAX_CHARS = 20_000

logger = structlog.get_logger(__name__)


class StopReason(IntEnum):
    """Why an attempt is stopped from outside; a higher one overrules a lower one."""

    SHUTDOWN = 1
    DEADLINE = 2
    CANCEL = 3
    #: Somebody else holds the job: nothing may be written any more.
    LOST = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """The handler's whole answer."""

    response: list[AgentMessage]
    usage: Usage | None
    outcome: Outcome


class Attempt:
    """One execution of a job by this worker."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.stop_reason: StopReason | None = None
        self.cancel_reason = ""
        self.partial = PartialAnswer()
        self._work: asyncio.Task[Answer] | None = None

    @property
    def held(self) -> tuple[str, int]:
        """What its lease is renewed by."""
        return self.claim.job_id, self.claim.attempt

    def stop(self, reason: StopReason, detail: str = "") -> None:
        """Stop the attempt. The reason is set before the coroutine is cancelled, so that it is there to be read."""
        if self.stop_reason is None or reason > self.stop_reason:
            self.stop_reason = reason
            self.cancel_reason = detail
        if self._work is not None:
            self._work.cancel()

    async def run(self, make_handler: Callable[[], BaseAgentHandler], stream: JobStream, timeout_s: float) -> Ending:
        """Let the handler answer; returns how that ended. Never raises, and always comes back soon after `stop`."""
        self._work = asyncio.create_task(
            self._answer(make_handler, stream, timeout_s), name=f"attempt-{self.claim.job_id}"
        )
        if self.stop_reason is not None:
            self._work.cancel()
        try:
            await asyncio.wait([self._work])
        except asyncio.CancelledError:
            # The loop is going down without an orderly shutdown: the job goes back.
            self.stop(StopReason.SHUTDOWN)
        if not self._work.done():
            await asyncio.wait([self._work], timeout=LET_GO_S)
        if not self._work.done():
            logger.error("the handler does not let go", framework=self.claim.agent_framework)
        return self._ending()

    async def _answer(
        self, make_handler: Callable[[], BaseAgentHandler], stream: JobStream, timeout_s: float
    ) -> Answer:
        repair = TextRepair()
        try:
            async with (
                asyncio.timeout(timeout_s),
                aclosing(make_handler().astream_events(self.claim.user_message)) as events,
            ):
                async for event in events:
                    if event.kind == "text":
                        self._show(repair.feed(event.text), stream)
                        continue
                    self._show(repair.flush(), stream)
                    if event.kind == "tool" and event.tool is not None:
                        tool: ToolNote = clean_json(event.tool)
                        stream.add_tool(tool)
                        self.partial.add_tool(tool)
                    elif event.kind == "final":
                        return self._checked(event.response, event.usage, event.outcome)
        except TimeoutError:
            raise AgentInvocationError(f"the agent did not answer within {timeout_s:g} s", code="timeout") from None
        raise AgentInvocationError("the agent ended without an answer", code="no_answer")

    def _show(self, text: str, stream: JobStream) -> None:
        if text:
            self.partial.add_text(text)
            stream.add_text(text)

    def _checked(self, response: list[AgentMessage] | None, usage: Usage | None, outcome: Outcome) -> Answer:
        if not response:
            raise AgentInvocationError("the agent answered with no message", code="no_answer")
        response = [AgentMessage.model_validate(clean_json(message.to_json())) for message in response]
        if joined_text(response) != self.partial.text:
            raise StreamMismatch
        return Answer(response, usage, outcome)

    def _ending(self) -> Ending:
        """What to do with the job. An answer that was complete before the stop came is kept."""
        work = self._work
        assert work is not None
        if self.stop_reason is StopReason.LOST:
            return Lost()
        error = None
        if work.done() and not work.cancelled():
            error = work.exception()
            if error is None:
                return Answered(work.result())
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
        return _failed(error, self.partial, record)


@dataclass(frozen=True, slots=True)
class Answered:
    """The handler answered."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler failed, or the deadline passed."""

    error: JobError
    charged: bool
    #: Seconds the provider asked to wait.
    retry_after: float | None
    partial: list[AgentMessage]
    record: AttemptRecord


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody wanted it stopped."""

    reason: str
    partial: list[AgentMessage]
    record: AttemptRecord


@dataclass(frozen=True, slots=True)
class Released:
    """The worker is shutting down."""

    partial: list[AgentMessage]
    record: AttemptRecord


@dataclass(frozen=True, slots=True)
class Lost:
    """Somebody else holds the job."""


Ending = Answered | Failed | Cancelled | Released | Lost


def _failed(error: BaseException | None, partial: PartialAnswer, record: AttemptRecord) -> Failed:
    charged, retry_after = True, None
    match error:
        case AgentInvocationError():
            job_error, charged, retry_after = error.to_job_error(), error.charged, error.retry_after
        case RequestError():
            job_error = error.to_job_error()
        case ChatmillError():
            job_error = JobError(code="configuration", message=str(error), retryable=False)
        case None:
            job_error = JobError(code="agent_stuck", message="the agent stopped without a result", retryable=True)
        case _:
            # Its text may hold anything; the trace is kept with the attempt.
            job_error = JobError(
                code="agent_error", message=f"the agent failed with {type(error).__name__}", retryable=True
            )
    kept: dict[str, Any] = {}
    if error is not None:
        trace = "".join(traceback.format_exception(error))
        kept = {"error_class": type(error).__name__, "trace": trace[-TRACE_MAX_CHARS:]}
    record = AttemptRecord(shown_text=record.shown_text, shown_tools=record.shown_tools, **kept)
    return Failed(job_error, charged, retry_after, partial.messages(), record)
