"""How an attempt ended, and with it what is to become of the job."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

from schemas.agent_message import AgentMessage, Usage
from schemas.errors import (
    AgentInvocationError,
    ChatmillError,
    JobError,
    RequestError,
    StorageUnavailable,
)
from schemas.stream_event import Outcome
from storage.jobs.move import AttemptRecord
from workers.partial_answer import PartialAnswer

#: What is kept of a traceback: enough to find the place.
TRACE_MAX_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Answer:
    """The handler's whole answer."""

    response: list[AgentMessage]
    usage: Usage | None
    outcome: Outcome


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


def failed_with(error: BaseException | None, partial: PartialAnswer, record: AttemptRecord) -> Failed:
    """The ending of an attempt whose handler raised `error`, or came to no result."""
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
