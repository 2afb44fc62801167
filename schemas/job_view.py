"""A job as clients are shown it over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field

from schemas.agent_message import AgentMessage, Usage, joined_text
from schemas.errors import JobError
from schemas.job_event import rfc3339
from schemas.stream_event import Outcome

JobStatus = Literal["queued", "running", "finished", "dead", "cancelled"]


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class JobResult(_View):
    """The answer of a finished job, as its `final` event carries it."""

    outcome: Outcome
    text: str = Field(description="The contents of the assistant's messages, joined.")
    response: list[AgentMessage]
    usage: Usage | None
    message_ids: list[str] = Field(description="Ids of the saved messages, in the order of `response`.")


class JobFailure(JobError):
    """Why a dead job was given up."""

    dead_letter_id: str


class JobCancellation(_View):
    """Why a job was stopped, or is to be stopped while it still runs; what it had said by then is saved."""

    reason: str
    text: str = ""
    response: list[AgentMessage] = Field(default_factory=list)
    message_ids: list[str] = Field(default_factory=list)


class JobSummary(_View):
    """A job without its answer. Times are RFC 3339 in UTC with milliseconds, by the database's clock."""

    id: str
    status: JobStatus
    queue: str
    session_id: str
    user_message_id: str = Field(description="The message it answers: the `reply_to` of a job that answers it again.")
    attempt: int = Field(description="Attempts begun so far.")
    failures: int = Field(description="Attempts that failed; the second failure is the last.")
    agent_framework: str
    model: str | None = Field(description="The model asked for; null is the gateway's default.")
    user_id: str | None
    created_at: str
    started_at: str | None = Field(description="When its first attempt began.")
    ended_at: str | None
    deadline_at: str = Field(description="When it is given up, waiting included.")
    outcome: Outcome | None = Field(description="How the answer of a finished job ended.")
    error_code: str | None = Field(description="Why its last attempt failed.")
    events: str = Field(description="Where its events are.")

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The view of a row of `storage.jobs.views`."""
        return cls(**cls._fields_of(row))

    @staticmethod
    def _fields_of(row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id": row["id"],
            "status": row["status"],
            "queue": row["queue"],
            "session_id": row["session_id"],
            "user_message_id": row["user_message_id"],
            "attempt": row["attempt"],
            "failures": row["failures"],
            "agent_framework": row["agent_framework"],
            "model": row["model"],
            "user_id": row["user_id"],
            "created_at": rfc3339(row["created_at"]),
            "started_at": _optional_time(row["started_at"]),
            "ended_at": _optional_time(row["ended_at"]),
            "deadline_at": rfc3339(row["deadline_at"]),
            "outcome": row["outcome"],
            "error_code": row["error_code"],
            "events": f"/v1/jobs/{row['id']}/events",
        }


class JobView(JobSummary):
    """A job with everything a client may know of it."""

    metadata: dict[str, Any] = Field(description="As it was sent.")
    result: JobResult | None = Field(description="Only when it is finished.")
    error: JobFailure | None = Field(description="Only when it is dead.")
    cancel: JobCancellation | None = Field(description="Only when it is cancelled, or is to be.")

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The view of a row of `storage.jobs.views.get_job`, whose `last_event` tells how the job ended."""
        ended = row["status"] in ("finished", "dead", "cancelled")
        event = orjson.loads(row["last_event"]) if ended else {}
        return cls(
            **cls._fields_of(row),
            metadata=row["body"].get("metadata", {}),
            result=_result(event) if row["status"] == "finished" else None,
            error=_failure(event) if row["status"] == "dead" else None,
            cancel=_cancellation(row, event),
        )


class JobPage(_View):
    """Jobs, the newest first."""

    data: list[JobSummary]
    next: str | None = Field(description="The `before` of the next page; null at the end.")


def _optional_time(at_us: int | None) -> str | None:
    return None if at_us is None else rfc3339(at_us)


def _result(event: Mapping[str, Any]) -> JobResult:
    response = [AgentMessage.model_validate(message) for message in event["response"]]
    return JobResult(
        outcome=event["outcome"],
        text=joined_text(response),
        response=response,
        usage=event["usage"],
        message_ids=event["message_ids"],
    )


def _failure(event: Mapping[str, Any]) -> JobFailure:
    return JobFailure(**event["error"], dead_letter_id=event["dead_letter_id"])


def _cancellation(row: Mapping[str, Any], event: Mapping[str, Any]) -> JobCancellation | None:
    if row["status"] == "running" and row["cancel_reason"] is not None:
        return JobCancellation(reason=row["cancel_reason"])
    if row["status"] != "cancelled":
        return None
    response = [AgentMessage.model_validate(message) for message in event["response"]]
    return JobCancellation(
        reason=event["reason"], text=joined_text(response), response=response, message_ids=event["message_ids"]
    )
