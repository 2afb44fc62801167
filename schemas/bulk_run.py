"""Doing the same to everything that meets a filter: how it is asked for, and how it is told about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from schemas.cancel_request import DEFAULT_CANCEL_REASON
from schemas.chat_job import Id, QueueName
from schemas.job_event import rfc3339
from schemas.moment import Moment, moment_us

BulkAction = Literal["redrive", "discard", "cancel"]
BulkState = Literal["running", "finished", "aborted"]
UnfinishedStatus = Literal["queued", "running"]

#: Fields of a request that are no part of its filter.
_NO_FILTER = frozenset({"all", "dry_run", "rate", "reason"})


class BulkRequest(BaseModel):
    """What every bulk request has beside its filter."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    all: bool = Field(default=False, description="Everything: an empty filter has to be meant.")
    dry_run: bool = Field(default=False, description="Only count what meets the filter.")
    rate: float | None = Field(
        default=None, ge=0.001, le=10_000, description="Items a second; null: as fast as it goes."
    )

    @model_validator(mode="after")
    def _means_it(self) -> Self:
        if bool(self.given()) == self.all:
            reason = "give a filter, or `all` as true and no filter"
            raise PydanticCustomError("filter", "{reason}", {"reason": reason, "field": "all"})
        return self

    def given(self) -> dict[str, Any]:
        """The fields of the filter that are given."""
        return self.model_dump(mode="json", exclude=set(_NO_FILTER), exclude_none=True)


class DeadLetterBulkRequest(BulkRequest):
    """Which dead letters are to be redriven or discarded."""

    queue: QueueName | None = None
    error_code: str | None = Field(default=None, min_length=1, max_length=64)
    framework: str | None = Field(default=None, min_length=1, max_length=128)
    model: str | None = Field(default=None, min_length=1, max_length=128, description="As the job asked for it.")
    since: Moment | None = Field(default=None, description="Died then or later: RFC 3339, or how long ago (`2h`).")
    until: Moment | None = Field(default=None, description="Died before then.")


class JobsCancelRequest(BulkRequest):
    """Which unfinished jobs are to be stopped."""

    queue: QueueName | None = None
    status: UnfinishedStatus | None = Field(default=None, description="Only `queued` or only `running` ones.")
    session_id: Id | None = None
    framework: str | None = Field(default=None, min_length=1, max_length=128)
    model: str | None = Field(default=None, min_length=1, max_length=128, description="As the job asked for it.")
    since: Moment | None = Field(default=None, description="Accepted then or later: RFC 3339, or how long ago (`2h`).")
    until: Moment | None = Field(default=None, description="Accepted before then.")
    reason: str = Field(
        default=DEFAULT_CANCEL_REASON, min_length=1, max_length=200, description="Kept with each of the jobs."
    )


def fixed(given: Mapping[str, Any], now_us: int) -> dict[str, Any]:
    """A filter whose times are points in time, in microseconds since 1970."""
    return {name: moment_us(value, now_us) if name in ("since", "until") else value for name, value in given.items()}


class BulkDryRun(BaseModel):
    """What a bulk request would touch."""

    model_config = ConfigDict(frozen=True)

    dry_run: Literal[True] = True
    count: int
    ids: list[str] = Field(description="The first few of them.")


class BulkRunView(BaseModel):
    """A bulk run and how far it is. Times are RFC 3339 in UTC with milliseconds, by the database's clock."""

    model_config = ConfigDict(frozen=True)

    id: str
    action: BulkAction
    filter: dict[str, Any] = Field(description="As it was asked for; its times as points in time.")
    reason: str = Field(description="What the jobs of a cancel are told.")
    rate: float | None = Field(description="Items a second; null: as fast as it goes.")
    state: BulkState
    total: int = Field(description="Items that met the filter when it began.")
    done: int
    skipped: int = Field(description="Items that had moved on when they were reached, or that cannot be done.")
    created_at: str
    ended_at: str | None

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The view of a row of `storage.bulk_runs`."""
        told = {name: rfc3339(value) if name in ("since", "until") else value for name, value in row["filter"].items()}
        names = ("id", "action", "reason", "rate", "state", "total", "done", "skipped")
        return cls(
            **{name: row[name] for name in names},
            filter=told,
            created_at=rfc3339(row["created_at"]),
            ended_at=None if row["ended_at"] is None else rfc3339(row["ended_at"]),
        )


class BulkRunPage(BaseModel):
    """Bulk runs, the newest first."""

    model_config = ConfigDict(frozen=True)

    data: list[BulkRunView]
    next: str | None = Field(description="The `before` of the next page; null at the end.")
