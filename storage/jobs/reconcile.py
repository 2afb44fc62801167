"""What a reconciler looks for: work nobody was rung for, leases nobody renewed, events nobody appended."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import BigInteger, ColumnElement, Connection, bindparam, func, literal_column, select

from storage.clock import now_us
from storage.jobs.statements import RUNNABLE
from storage.lanes import is_alone
from storage.queues import not_paused
from storage.tables import jobs, lanes, transitions

_DUE_LANES = (
    select(lanes.c.lane, lanes.c.tenant)
    .where(
        lanes.c.next_due.is_not(None),
        lanes.c.next_due <= now_us(),
        lanes.c.running < lanes.c.running_limit,
        not_paused(lanes.c.lane),
    )
    .order_by(lanes.c.lane)
)
_OVERDUE = select(func.count()).select_from(
    select(jobs.c.id)
    .where(
        RUNNABLE,
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
    .where(_RUNNING, jobs.c.lease_until < func.coalesce(bindparam("as_of", type_=BigInteger), now_us()))
    .order_by(jobs.c.lease_until)
    .limit(bindparam("most"))
)
_LAPSED = (
    select(jobs.c.id, jobs.c.epoch)
    .where(_QUEUED, jobs.c.deadline_at <= now_us())
    .order_by(jobs.c.deadline_at)
    .limit(bindparam("most"))
)
#: Materialized, or SQLite would read every transition there ever was to save itself the grouping.
_LATELY = (
    select(transitions.c.job_id, transitions.c.epoch, transitions.c.at)
    .where(transitions.c.at >= bindparam("since"))
    .cte("lately")
    .prefix_with("MATERIALIZED")
)
_LAST_AT = func.max(_LATELY.c.at)
_RECENT = (
    select(_LATELY.c.job_id, func.max(_LATELY.c.epoch).label("epoch"), _LAST_AT.label("at"))
    .group_by(_LATELY.c.job_id)
    .order_by(_LAST_AT)
    .limit(bindparam("most"))
)


@dataclass(frozen=True, slots=True)
class Stale:
    """A job that stands where it should not, at the epoch it was seen in."""

    job_id: str
    epoch: int


def overdue_lanes(connection: Connection, patience_us: int, most: int) -> dict[str, int]:
    """How many runnable jobs of each queue have been due for longer than `patience_us`; at most `most` are counted.

    Nobody is rung for jobs that run alone, so they are left out.
    """
    counts: dict[str, int] = {}
    for lane, tenant in connection.execute(_DUE_LANES).all():
        left = most - counts.get(lane, 0)
        if left > 0 and not is_alone(lane):
            key = {"lane": lane, "tenant": tenant, "patience": patience_us, "most": left}
            counts[lane] = counts.get(lane, 0) + connection.execute(_OVERDUE, key).scalar_one()
    return {lane: count for lane, count in counts.items() if count}


def expired_jobs(connection: Connection, most: int, as_of_us: int | None = None) -> list[Stale]:
    """Running jobs whose lease was past at `as_of_us` (now, if left out), the longest past first."""
    return [Stale(row.id, row.epoch) for row in connection.execute(_EXPIRED, {"most": most, "as_of": as_of_us})]


def lapsed_jobs(connection: Connection, most: int) -> list[Stale]:
    """Queued jobs whose deadline is past."""
    return [Stale(row.id, row.epoch) for row in connection.execute(_LAPSED, {"most": most})]


@dataclass(frozen=True, slots=True)
class Moved:
    """A job that moved lately: the epoch it moved to, whose event belongs in the log as `<epoch>-1`."""

    job_id: str
    epoch: int
    #: Database time of the move, in microseconds.
    at: int


def moved_jobs(connection: Connection, since_us: int, most: int) -> list[Moved]:
    """The newest transition of every job that moved at or after `since_us`, the longest ago first."""
    rows = connection.execute(_RECENT, {"since": since_us, "most": most})
    return [Moved(row.job_id, row.epoch, row.at) for row in rows]
