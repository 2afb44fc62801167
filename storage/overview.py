"""What is going on, counted: the queues, the last minutes, and what lies there and waits for somebody.

Every statement reads only what is queued, running, recent or lying, through an index that holds nothing else, and stops
at a bound: what it costs does not grow with the jobs that have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, bindparam, case, func, literal_column, select

from storage.breakers import list_breakers
from storage.clock import MICROSECONDS, to_us
from storage.jobs.statements import read_clock
from storage.lanes import queue_of
from storage.queues import paused
from storage.tables import dead_letters, jobs, quarantine, transitions

#: Nothing is counted beyond this.
COUNT_MOST = 100_000
#: Transitions that are looked through for the throughput; more than a busy deployment makes in five minutes.
LATELY_MOST = 100_000
WINDOW_S = 300
#: The window is told in pieces of this length.
SLICE_S = 10
SLICES = WINDOW_S // SLICE_S
LATEST_FAILURES = 10

# As the partial indexes spell it. The orders make PostgreSQL read the index until the bound instead of the table.
_QUEUED: ColumnElement[bool] = literal_column("jobs.status = 'queued'")
_RUNNING: ColumnElement[bool] = literal_column("jobs.status = 'running'")
_RUNNABLE: ColumnElement[bool] = literal_column("jobs.status = 'queued' AND jobs.head")
_LYING: ColumnElement[bool] = literal_column("dead_letters.resolution IS NULL")


def _some(query: Select[*tuple[Any, ...]], name: str) -> Any:
    return query.limit(bindparam("most")).subquery(name)


_SOME_QUEUED = _some(select(jobs.c.queue).where(_QUEUED).order_by(jobs.c.deadline_at), "waiting")
_SOME_RUNNING = _some(select(jobs.c.queue).where(_RUNNING).order_by(jobs.c.worker), "busy")
_SOME_RUNNABLE = _some(
    select(jobs.c.lane, jobs.c.due_at).where(_RUNNABLE).order_by(jobs.c.lane, jobs.c.tenant), "heads"
)
_SOME_DEAD = _some(select(dead_letters.c.id).where(_LYING), "lying")
_SOME_UNREADABLE = _some(select(quarantine.c.id).where(quarantine.c.resolution.is_(None)), "unreadable")

_COUNT_QUEUED = select(_SOME_QUEUED.c.queue, func.count().label("jobs")).group_by(_SOME_QUEUED.c.queue)
_COUNT_RUNNING = select(_SOME_RUNNING.c.queue, func.count().label("jobs")).group_by(_SOME_RUNNING.c.queue)
_COUNT_DUE = (
    select(_SOME_RUNNABLE.c.lane, func.count().label("jobs"), func.min(_SOME_RUNNABLE.c.due_at).label("oldest"))
    .where(_SOME_RUNNABLE.c.due_at <= bindparam("now", type_=BigInteger))
    .group_by(_SOME_RUNNABLE.c.lane)
)
_COUNT_DEAD = select(func.count()).select_from(_SOME_DEAD)
_COUNT_UNREADABLE = select(func.count()).select_from(_SOME_UNREADABLE)
_FAILURES = (
    select(
        dead_letters.c.job_id,
        dead_letters.c.id,
        dead_letters.c.queue,
        dead_letters.c.error_code,
        dead_letters.c.created_at,
        dead_letters.c.resolution,
    )
    .where(dead_letters.c.tenant == bindparam("owner"))
    .order_by(dead_letters.c.id.desc())
    .limit(LATEST_FAILURES)
)

#: Transitions that may end a job. Their events say whether they did; those of others, which may be long, are not read.
_MAY_BURY = ("fail", "expire", "lapse", "defer", "release")
_FAILED = '{"kind":"failed"'
_COUNTS_AS = case(
    (transitions.c.kind == "finish", "finished"),
    (transitions.c.kind == "cancel", "cancelled"),
    (
        transitions.c.kind.in_(_MAY_BURY),
        case(
            (func.substr(transitions.c.event, 1, len(_FAILED)) == _FAILED, "dead"),
            (transitions.c.kind.in_(("fail", "expire")), "retried"),
            else_="",
        ),
    ),
    else_="",
)
_SINCE = bindparam("since", type_=BigInteger)
_LATELY = (
    select(_COUNTS_AS.label("counts_as"), transitions.c.at)
    .where(transitions.c.at >= _SINCE)
    .order_by(transitions.c.at.desc())
    .limit(bindparam("most"))
    .cte("lately")
    .prefix_with("MATERIALIZED")
)
_SLICE = ((_LATELY.c.at - _SINCE) // bindparam("slice_us", type_=BigInteger)).label("slice")
_THROUGHPUT = select(
    _LATELY.c.counts_as, _SLICE, func.count().label("jobs"), func.min(_LATELY.c.at).label("earliest")
).group_by(_LATELY.c.counts_as, _SLICE)


@dataclass(slots=True)
class QueueCounts:
    """One queue that has jobs or is paused. Times are microseconds."""

    queued: int = 0
    #: Queued, and might run now if there were room.
    due: int = 0
    oldest_due_at: int | None = None
    running: int = 0
    paused_at: int | None = None
    pause_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Throughput:
    """What became of jobs in the last WINDOW_S or a little less, in slices of SLICE_S, the oldest first."""

    finished: list[int] = field(default_factory=lambda: [0] * SLICES)
    dead: list[int] = field(default_factory=lambda: [0] * SLICES)
    retried: list[int] = field(default_factory=lambda: [0] * SLICES)
    cancelled: list[int] = field(default_factory=lambda: [0] * SLICES)


def queue_counts(connection: Connection, now: int) -> dict[str, QueueCounts]:
    """Every queue that has unfinished jobs or is paused, by name."""
    found: dict[str, QueueCounts] = {}

    def of(name: str) -> QueueCounts:
        return found.setdefault(name, QueueCounts())

    for row in connection.execute(_COUNT_QUEUED, {"most": COUNT_MOST}):
        of(row.queue).queued += row.jobs
    for row in connection.execute(_COUNT_RUNNING, {"most": COUNT_MOST}):
        of(row.queue).running += row.jobs
    for row in connection.execute(_COUNT_DUE, {"most": COUNT_MOST, "now": now}):
        counts = of(queue_of(row.lane))
        counts.due += row.jobs
        counts.oldest_due_at = min(row.oldest, counts.oldest_due_at or row.oldest)
    for pause in paused(connection):
        of(pause["queue"]).paused_at, of(pause["queue"]).pause_reason = pause["paused_at"], pause["reason"]
    return dict(sorted(found.items()))


def open_breakers(connection: Connection) -> list[dict[str, Any]]:
    """The rows of the breakers that are open, each with `held`, the jobs that wait for it."""
    return [row for row in list_breakers(connection) if row["opened_at"] is not None]


def dead_letters_lying(connection: Connection) -> int:
    """Dead letters that nobody has redriven or discarded, of all tenants; counted up to COUNT_MOST."""
    return int(connection.execute(_COUNT_DEAD, {"most": COUNT_MOST}).scalar_one())


def quarantine_lying(connection: Connection) -> int:
    """Queue messages nobody could read and nobody has decided about; counted up to COUNT_MOST."""
    return int(connection.execute(_COUNT_UNREADABLE, {"most": COUNT_MOST}).scalar_one())


def latest_failures(connection: Connection, tenant: str) -> list[dict[str, Any]]:
    """The tenant's newest dead letters, resolved ones too: job_id, id, queue, error_code, created_at, resolution."""
    return [dict(row) for row in connection.execute(_FAILURES, {"owner": tenant}).mappings()]


def throughput(connection: Connection, now: int) -> tuple[Throughput, float]:
    """What became of jobs lately, and how many seconds that covers: less if there was too much to look through.

    Slices begin at full slices of the clock, so that two looks tell the same of what is past; the last is not over yet.
    """
    since = now - now % to_us(SLICE_S) - to_us(WINDOW_S - SLICE_S)
    found = Throughput()
    looked_at, earliest = 0, now
    rows = connection.execute(_THROUGHPUT, {"since": since, "most": LATELY_MOST, "slice_us": to_us(SLICE_S)})
    for row in rows:
        looked_at += row.jobs
        earliest = min(earliest, row.earliest)
        if row.counts_as:
            # A transaction that began later than this one's clock may be seen.
            getattr(found, row.counts_as)[min(row.slice, SLICES - 1)] += row.jobs
    return found, (now - (earliest if looked_at >= LATELY_MOST else since)) / MICROSECONDS


@dataclass(frozen=True, slots=True)
class Standing:
    """What stands and waits, at one moment of the database's clock."""

    at: int
    queues: dict[str, QueueCounts]
    breakers: list[dict[str, Any]]
    dead_letters: int
    quarantine: int


def read_standing(connection: Connection) -> Standing:
    """What stands and waits, over all tenants."""
    now = read_clock(connection)
    return Standing(
        at=now,
        queues=queue_counts(connection, now),
        breakers=open_breakers(connection),
        dead_letters=dead_letters_lying(connection),
        quarantine=quarantine_lying(connection),
    )


@dataclass(frozen=True, slots=True)
class Overview(Standing):
    """That, and what has happened lately."""

    throughput: Throughput
    #: Seconds that `throughput` covers.
    covers_s: float
    failures: list[dict[str, Any]]


def read_overview(connection: Connection, tenant: str) -> Overview:
    """The overview over all tenants; `failures` are those of `tenant` alone."""
    standing = read_standing(connection)
    lately, covers_s = throughput(connection, standing.at)
    return Overview(
        at=standing.at,
        queues=standing.queues,
        breakers=standing.breakers,
        dead_letters=standing.dead_letters,
        quarantine=standing.quarantine,
        throughput=lately,
        covers_s=covers_s,
        failures=latest_failures(connection, tenant),
    )
