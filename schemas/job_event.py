"""The events of a job, as clients see them: one JSON object on one line, encoded once.

An event's id is `<epoch>-<seq>`. Every transition of a job opens an epoch and its event is that epoch's first entry;
the tokens of an attempt follow its `started`. See docs/events.md for how a client folds them into a text.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field

from schemas.agent_message import AgentMessage, Usage
from schemas.errors import JobError
from schemas.stream_event import Outcome, ToolNote

#: Kinds after which nothing follows in the same epoch; a redrive opens a newer one.
TERMINAL_KINDS = frozenset({"final", "failed", "cancelled"})


class EventId(NamedTuple):
    """The place of an event in its job's log; ids compare as tuples."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `<epoch>-<seq>`; raises ValueError for anything else."""
        epoch, dash, seq = text.strip().partition("-")
        if not dash or not (epoch.isascii() and epoch.isdigit() and seq.isascii() and seq.isdigit()):
            raise ValueError(f"{text!r} is not an event id of the form <epoch>-<seq>")
        if len(epoch) > 18 or len(seq) > 18:
            raise ValueError(f"{text[:40]!r} is out of range for an event id")
        return cls(int(epoch), int(seq))


def rfc3339(at_us: int) -> str:
    """Microseconds since 1970 as RFC 3339 in UTC with milliseconds."""
    return (
        datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{at_us // 1000 % 1000:03d}Z"
    )


def encode_event(kind: str, job_id: str, at_us: int, **fields: Any) -> bytes:
    """One event as the bytes that are stored, published and sent."""
    return orjson.dumps({"kind": kind, "job_id": job_id, "at": rfc3339(at_us), **fields})


def is_terminal(event: bytes) -> bool:
    """Whether an encoded event ends its job; every event is encoded with its kind first."""
    return event.startswith(_TERMINAL_PREFIXES)


_TERMINAL_PREFIXES = tuple(b'{"kind":"%s"' % kind.encode() for kind in sorted(TERMINAL_KINDS))


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    job_id: str
    #: RFC 3339 in UTC with milliseconds.
    at: str


class QueuedEvent(_Event):
    """The job is accepted, or redriven."""

    kind: Literal["queued"] = "queued"
    queue: str
    session_id: str


class StartedEvent(_Event):
    """An attempt begins: what was shown of earlier attempts is void."""

    kind: Literal["started"] = "started"
    attempt: int
    worker: str


class SnapshotEvent(_Event):
    """Replaces what this attempt has shown so far."""

    kind: Literal["snapshot"] = "snapshot"
    text: str
    tools: list[ToolNote]


class TextEvent(_Event):
    """Append `text`."""

    kind: Literal["text"] = "text"
    text: str


class ToolEvent(_Event):
    """A tool call started or finished."""

    kind: Literal["tool"] = "tool"
    tool: ToolNote


class RetryingEvent(_Event):
    """The attempt failed; another follows at `retry_at`."""

    kind: Literal["retrying"] = "retrying"
    error: JobError
    retry_at: str


class RequeuedEvent(_Event):
    """The worker is shutting down; another attempt follows and no retry is used."""

    kind: Literal["requeued"] = "requeued"
    reason: str


class FinalEvent(_Event):
    """Terminal: the whole saved answer."""

    kind: Literal["final"] = "final"
    outcome: Outcome
    response: list[AgentMessage]
    usage: Usage | None
    message_ids: list[str]


class FailedEvent(_Event):
    """Terminal: dead-lettered."""

    kind: Literal["failed"] = "failed"
    error: JobError
    dead_letter_id: str


class CancelledEvent(_Event):
    """Terminal: stopped; partial text is saved and marked."""

    kind: Literal["cancelled"] = "cancelled"
    reason: str
    response: list[AgentMessage]
    message_ids: list[str]


JobEvent = Annotated[
    QueuedEvent
    | StartedEvent
    | SnapshotEvent
    | TextEvent
    | ToolEvent
    | RetryingEvent
    | RequeuedEvent
    | FinalEvent
    | FailedEvent
    | CancelledEvent,
    Field(discriminator="kind"),
]
