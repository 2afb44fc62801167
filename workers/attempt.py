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
from pydantic import TypeAdapter

from handlers.base import BaseAgentHandler
from schemas.agent_message import AgentMessage, Usage, joined_text
from schemas.border_text import TextRepair, clean_json
from schemas.errors import (
    AgentInvocationError,
    ChatmillError,
    JobError,
    MalformedRequest,
    RequestError,
    StorageUnavailable,
    StreamMismatch,
    TransitionRefused,
)
from schemas.stream_event import Outcome, ToolNote
from storage.jobs.claim import Claim
from storage.jobs.settle import AttemptRecord
from workers.job_stream import JobStream
from workers.partial_answer import PartialAnswer

#: How long a handler may take to let go, once its attempt is decided, before it is left behind; the fence keeps it from
#: writing.
LET_GO_S = 5.0
#: What is kept of a traceback: enough to find the place.
TRACE_MAX_CHARS = 20_000

_TOOL_NOTE = TypeAdapter(ToolNote)

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

    async def run(self, make_handler: Callable[[], BaseAgentHandler], stream: JobStream, timeout_s: float) -> Ending:
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

    async def _listen(self, make_handler: Callable[[], BaseAgentHandler], stream: JobStream, timeout_s: float) -> None:
        """Show what the handler says until its answer is complete; raises if it has none."""
        repair = TextRepair()
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit, aclosing(make_handler().astream_events(self.claim.user_message)) as events:
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
        response = [AgentMessage.model_validate(_storable(message.to_json())) for message in response]
        if joined_text(response) != self.partial.text:
            raise StreamMismatch
        return Answer(response, usage, outcome)

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
        case StorageUnavailable():
            # An outage of the database is no fault of the job.
            charged = False
            job_error = JobError(code="storage", message="the database did not answer", retryable=True)
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


def _storable(value: Any) -> Any:
    try:
        return clean_json(value)
    except MalformedRequest as error:
        raise AgentInvocationError(f"the agent said what cannot be stored: {error}", code="unstorable") from None


def _look_at(work: asyncio.Task[None]) -> None:
    """Take note of the error of a handler that was left behind: nobody else does."""
    if not work.cancelled():
        work.exception()
