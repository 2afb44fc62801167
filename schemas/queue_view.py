"""Queues and breakers as an operator sees them, over all tenants. Times are RFC 3339 in UTC with milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from schemas.errors import JobError
from schemas.job_event import rfc3339


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class PauseRequest(BaseModel):
    """The optional body of a pause."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    reason: str = Field(default="", max_length=200, description="Shown to whoever asks why nothing starts.")


class BreakerResetRequest(BaseModel):
    """Which breaker is to be closed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=256)


class QueueView(_View):
    """A queue. One without jobs that is not paused is not listed."""

    name: str
    queued: int = Field(description="Jobs that wait, whatever for.")
    due: int = Field(description="Those that might run now if there were room for them.")
    running: int
    paused: bool
    reason: str | None = Field(description="Why it is paused.")
    paused_at: str | None


class Queues(_View):
    """All queues, by name."""

    data: list[QueueView]


class BreakerView(_View):
    """A provider and model whose calls have failed lately."""

    name: str
    failures: int = Field(description="In a row.")
    open: bool = Field(description="Whether its jobs are held.")
    opened_at: str | None
    probe_at: str | None = Field(description="When the next job may try; while one tries, when it is given up on.")
    held: int = Field(description="Jobs that wait for it.")
    last_error: JobError | None

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The view of a row of `storage.breakers.list_breakers`."""
        return cls(
            **{name: row[name] for name in ("name", "failures", "held", "last_error")},
            open=row["opened_at"] is not None,
            opened_at=_time(row["opened_at"]),
            probe_at=_time(row["probe_at"]),
        )


class Breakers(_View):
    """All breakers that have counted a failure, by name."""

    data: list[BreakerView]


def _time(at_us: int | None) -> str | None:
    return None if at_us is None else rfc3339(at_us)
