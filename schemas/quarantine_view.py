"""The quarantine as clients see it: queue messages nobody could make sense of."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from schemas.job_event import rfc3339

EntryState = Literal["lying", "requeued", "dropped"]


class RequeueRequest(BaseModel):
    """The optional body of a requeue."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    payload: dict[str, Any] | None = Field(
        default=None, description="The job the message was meant to be: a ChatJob. Left out: the bytes as they are."
    )


class QuarantineSummary(BaseModel):
    """A message that was kept. Times are RFC 3339 in UTC with milliseconds, by the database's clock."""

    model_config = ConfigDict(frozen=True)

    id: str
    queue: str = Field(description="The queue it came by.")
    reason: str
    size: int = Field(description="Its bytes.")
    created_at: str
    state: EntryState = Field(description="`lying` until somebody decides about it.")
    resolved_at: str | None = Field(description="When that was.")

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The view of a row of `storage.quarantine.list_entries`."""
        return cls(**cls._fields_of(row))

    @staticmethod
    def _fields_of(row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **{name: row[name] for name in ("id", "queue", "reason", "size")},
            "created_at": rfc3339(row["created_at"]),
            "state": row["resolution"] or "lying",
            "resolved_at": None if row["resolved_at"] is None else rfc3339(row["resolved_at"]),
        }


class QuarantineView(QuarantineSummary):
    """An entry with its bytes: the whole message if that could not be read, its arguments as JSON if they could not."""

    payload: str = Field(description="The bytes as base64.")
    text: str | None = Field(description="The bytes as text; null if they are not UTF-8.")

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The view of a row of `storage.quarantine.get_entry`."""
        payload = bytes(row["payload"])
        return cls(**cls._fields_of(row), payload=base64.b64encode(payload).decode(), text=_text(payload))


class Requeued(QuarantineSummary):
    """An entry that is on its queue again. If nobody can read it this time either, it comes back as a new entry."""

    job_id: str | None = Field(description="The job to look for; null if the message was not corrected.")


class QuarantinePage(BaseModel):
    """Entries, the newest first."""

    model_config = ConfigDict(frozen=True)

    data: list[QuarantineSummary]
    next: str | None = Field(description="The `before` of the next page; null at the end.")


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None
