"""What a reconciler looks for: work nobody was rung for, leases nobody renewed, events nobody appended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, bindparam, func, literal_column, select

from storage.clock import now_us
from storage.tables import jobs, lanes, transitions

_DUE_LANES = (
    select(lanes.c.lane, lanes.c.tenant)
    .where(lanes.c.next_due.is_not(None), lanes.c.next_due <= now_us(), lanes.c.running < lanes.c.running_limit)
    .order_by(lanes.c.lane)
)
_RUNNABLE: ColumnElement[bool] = literal_column("jobs.status = 'queued' AND jobs.head")
_OVERDUE = select(func.count()).select_from(
    select(jobs.c.id)
    .where(
        _RUNNABLE,
        jobs.c.lane == bindparam("lane"),
        jobs.c.tenant == bindparam("tenant"),
        jobs.c.due_at <= now_us() - bindparam("patience"),
    )
    .limit(bindparam("most"))
    .subquery()
)
_RUNNING: ColumnElement[bool] = literal_column("jobs.status = 'running'")
_QUEUED: ColumnElement[bool] = literal_column("jobs.status = 'queued'")
_EXPIRED = (
    select(jobs.c.id, jobs.c.epoch)
    .where(_RUNNING, jobs.c.lease_until < now_us())
    .order_by(jobs.c.lease_until)
    .limit(bindparam("most"))
)
_LAPSED = (
    select(jobs.c.id, jobs.c.epoch)
    .where(_QUEUED, jobs.c.deadline_at <= now_us())
    .order_by(jobs.c.deadline_at)
    .limit(bindparam("most"))
)
_RECENT = (
    select(
        transitions.c.position,
        transitions.c.job_id,
        transitions.c.epoch,
        transitions.c.kind,
        transitions.c.event,
        transitions.c.at,
    )
    .where(transitions.c.at >= bindparam("since"))
    .order_by(transitions.c.at, transitions.c.position)
    .limit(bindparam("most"))
)


@dataclass(frozen=True, slots=True)
class Stale:
    """A job that stands where it should not, at the epoch it was seen in."""

    job_id: str
    epoch: int


def overdue_lanes(connection: Connection, patience_us: int, most: int) -> dict[str, int]:
    """How many runnable jobs of each queue have been due for longer than `patience_us`; at most `most` are counted."""
    counts: dict[str, int] = {}
    for lane, tenant in connection.execute(_DUE_LANES).all():
        left = most - counts.get(lane, 0)
        if left > 0:
            key = {"lane": lane, "tenant": tenant, "patience": patience_us, "most": left}
            counts[lane] = counts.get(lane, 0) + connection.execute(_OVERDUE, key).scalar_one()
    return {lane: count for lane, count in counts.items() if count}


def expired_jobs(connection: Connection, most: int) -> list[Stale]:
    """Running jobs whose lease is past, the longest past first."""
    return [Stale(row.id, row.epoch) for row in connection.execute(_EXPIRED, {"most": most})]


def lapsed_jobs(connection: Connection, most: int) -> list[Stale]:
    """Queued jobs whose deadline is past."""
    return [Stale(row.id, row.epoch) for row in connection.execute(_LAPSED, {"most": most})]


@dataclass(frozen=True, slots=True)
class LoggedTransition:
    """A transition whose event belongs in the log as `<epoch>-1`."""

    position: int
    job_id: str
    epoch: int
    kind: str
    event: bytes
    #: Database time of the transition, in microseconds.
    at: int


def recent_transitions(connection: Connection, since_us: int, most: int) -> Sequence[LoggedTransition]:
    """Transitions made at or after `since_us`, oldest first."""
    rows = connection.execute(_RECENT, {"since": since_us, "most": most})
    return [LoggedTransition(row.position, row.job_id, row.epoch, row.kind, row.event.encode(), row.at) for row in rows]
