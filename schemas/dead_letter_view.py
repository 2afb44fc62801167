"""Dead letters as clients see them. Times are RFC 3339 in UTC with milliseconds, by the database's clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from schemas.errors import JobError
from schemas.job_event import rfc3339
from schemas.job_view import JobSummary

LetterState = Literal["lying", "redriven", "discarded"]


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class AttemptView(_View):
    """One attempt, and what is kept of it."""

    attempt: int
    worker: str
    model: str | None = Field(description="The model it asked; null is the job's.")
    started_at: str
    ended_at: str | None
    ending: str | None = Field(
        description="`finish`, `fail`, `defer`, `release`, `cancel` or `expire`; null while it runs."
    )
    error: JobError | None
    error_class: str | None = Field(description="The class of what was raised.")
    trace: str | None = Field(description="Where it was raised.")
    shown_text: str = Field(description="What had been streamed when it ended without an answer.")
    shown_tools: list[dict[str, Any]] = Field(description="The tool calls that had been shown by then.")

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The view of a row of `storage.jobs.views.get_attempts`."""
        same = ("attempt", "worker", "model", "ending", "error", "error_class", "trace")
        return cls(
            **{name: row[name] for name in same},
            started_at=rfc3339(row["started_at"]),
            ended_at=None if row["ended_at"] is None else rfc3339(row["ended_at"]),
            shown_text=row["shown_text"] or "",
            shown_tools=row["shown_tools"] or [],
        )


class DeadLetterSummary(_View):
    """A job that was given up, and why."""

    id: str
    job_id: str
    queue: str
    error: JobError
    agent_framework: str
    model: str | None = Field(description="The model the job asked for; null is the gateway's default.")
    created_at: str = Field(description="When the job was given up.")
    state: LetterState = Field(description="`lying` until somebody decides about it.")
    resolved_at: str | None = Field(description="When that was.")

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The view of a row of `storage.dead_letters.list_letters`."""
        return cls(**cls._fields_of(row))

    @staticmethod
    def _fields_of(row: Mapping[str, Any]) -> dict[str, Any]:
        same = ("id", "job_id", "queue", "error", "agent_framework", "model")
        return {
            **{name: row[name] for name in same},
            "created_at": rfc3339(row["created_at"]),
            "state": row["resolution"] or "lying",
            "resolved_at": None if row["resolved_at"] is None else rfc3339(row["resolved_at"]),
        }


class DeadLetterView(DeadLetterSummary):
    """A dead letter with all that is known of its job."""

    job: JobSummary = Field(description="The job as it is now.")
    body: dict[str, Any] = Field(description="The request as it was sent.")
    attempts: list[AttemptView] = Field(description="Every attempt, the first one first.")

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The view of a row of `storage.dead_letters.get_letter`."""
        return cls(
            **cls._fields_of(row),
            job=JobSummary.of_row(row["job"]),
            body=row["job"]["body"],
            attempts=[AttemptView.of_row(attempt) for attempt in row["attempts"]],
        )


class DeadLetterPage(_View):
    """Dead letters, the newest first."""

    data: list[DeadLetterSummary]
    next: str | None = Field(description="The `before` of the next page; null at the end.")
