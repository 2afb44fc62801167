"""What lies in the database now, for a scrape of the metrics: each figure from a partial index or a tiny table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Connection, func, literal_column, select

from storage.clock import MICROSECONDS, now_us
from storage.jobs.statements import read_clock
from storage.lanes import queue_of
from storage.tables import breakers, dead_letters, jobs, paused_queues, quarantine

#: As the partial indexes spell it: a bound parameter would not use them.
_QUEUED: ColumnElement[bool] = literal_column("jobs.status = 'queued'")
_RUNNABLE: ColumnElement[bool] = literal_column("jobs.status = 'queued' AND jobs.head")
_RUNNING: ColumnElement[bool] = literal_column("jobs.status = 'running'")
_LYING: ColumnElement[bool] = literal_column("dead_letters.resolution IS NULL")

_COUNT_QUEUED = select(jobs.c.queue, func.count().label("jobs")).where(_QUEUED).group_by(jobs.c.queue)
_COUNT_RUNNING = select(jobs.c.queue, func.count().label("jobs")).where(_RUNNING).group_by(jobs.c.queue)
_DUE = (
    select(jobs.c.lane, func.count(), func.min(jobs.c.due_at))
    .where(_RUNNABLE, jobs.c.due_at <= now_us())
    .group_by(jobs.c.lane)
)
_COUNT_DEAD = select(func.count()).select_from(dead_letters).where(_LYING)
_COUNT_QUARANTINE = select(func.count()).select_from(quarantine).where(quarantine.c.resolution.is_(None))
_COUNT_BREAKERS = select(func.count()).select_from(breakers).where(breakers.c.opened_at.is_not(None))
_PAUSED = select(paused_queues.c.queue, paused_queues.c.paused_at)


@dataclass(frozen=True, slots=True)
class Counts:
    """Figures of one moment; those of queues by the queue's name, ages in seconds."""

    queued: dict[str, int] = field(default_factory=dict)
    #: Those a worker could claim at once; without the ones behind another job of their session.
    due: dict[str, int] = field(default_factory=dict)
    #: How long the oldest of them has been due.
    oldest_due_s: dict[str, float] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    #: How long the queue has been paused.
    paused_s: dict[str, float] = field(default_factory=dict)
    dead_letters: int = 0
    quarantined: int = 0
    open_breakers: int = 0


def read_counts(connection: Connection) -> Counts:
    """All figures, of all tenants. A lane for jobs that run alone counts as its queue."""
    now = read_clock(connection)
    due: Counter[str] = Counter()
    oldest: dict[str, float] = {}
    for lane, count, since in connection.execute(_DUE):
        queue = queue_of(lane)
        due[queue] += count
        oldest[queue] = max(oldest.get(queue, 0.0), _seconds(now, since))
    return Counts(
        queued={row.queue: row.jobs for row in connection.execute(_COUNT_QUEUED)},
        due=dict(due),
        oldest_due_s=oldest,
        running={row.queue: row.jobs for row in connection.execute(_COUNT_RUNNING)},
        paused_s={queue: _seconds(now, since) for queue, since in connection.execute(_PAUSED)},
        dead_letters=connection.execute(_COUNT_DEAD).scalar_one(),
        quarantined=connection.execute(_COUNT_QUARANTINE).scalar_one(),
        open_breakers=connection.execute(_COUNT_BREAKERS).scalar_one(),
    )


def _seconds(now_us: int, since_us: int) -> float:
    return max(0, now_us - since_us) / MICROSECONDS
