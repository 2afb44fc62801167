"""Breakers: one for each provider and model. A provider that fails job after job is left alone for a while.

While a breaker is open its jobs stay queued, uncharged: a claim that meets it moves their due time to the probe, the
one job that may try again. Any answer of the provider closes it; then whoever was held is due at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, delete, func, literal_column, null, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from schemas.errors import JobError, NotFound
from storage.clock import now_us
from storage.jobs.hold_back import AFTER_OTHERS_US
from storage.jobs.statements import read_clock, work_is_due
from storage.locks import lock_lanes
from storage.tables import breakers, jobs

#: The breaker that a job of this framework and model would meet, if this process believes that it is open.
Held = Callable[[str, str | None], str | None]

_NAME = breakers.c.name == bindparam("the_name")
_INSERT = (
    insert(breakers)
    .values(
        name=bindparam("name"),
        failures=0,
        pause_us=bindparam("pause"),
        updated_at=bindparam("now"),
    )
    .on_conflict_do_nothing()
)
_IS_PROBE = breakers.c.probe_job == bindparam("job")
_OPENS = and_(breakers.c.opened_at.is_(None), breakers.c.failures + 1 >= bindparam("threshold"))
_LONGER = case((breakers.c.pause_us * 2 > bindparam("longest"), bindparam("longest")), else_=breakers.c.pause_us * 2)
_COUNT = (
    update(breakers)
    .where(_NAME)
    .values(
        failures=breakers.c.failures + 1,
        opened_at=case((_OPENS, bindparam("now")), else_=breakers.c.opened_at),
        probe_at=case(
            (_OPENS, bindparam("now") + breakers.c.pause_us),
            (_IS_PROBE, bindparam("now") + _LONGER),
            else_=breakers.c.probe_at,
        ),
        pause_us=case((_IS_PROBE, _LONGER), else_=breakers.c.pause_us),
        probe_job=case((_IS_PROBE, null()), else_=breakers.c.probe_job),
        last_error=bindparam("error"),
        updated_at=bindparam("now"),
    )
    .returning(breakers.c.opened_at)
)
_CLOSE = delete(breakers).where(_NAME)
_OPEN = select(breakers.c.probe_at, breakers.c.probe_job).where(_NAME, breakers.c.opened_at.is_not(None))
_BEGIN_PROBE = (
    update(breakers)
    .where(_NAME, breakers.c.opened_at.is_not(None), or_(breakers.c.probe_at <= bindparam("now"), _IS_PROBE))
    .values(probe_at=bindparam("give_up"), probe_job=bindparam("job"))
)
_END_PROBE = update(breakers).where(_NAME, _IS_PROBE).values(probe_at=bindparam("now"), probe_job=None)
_HELD: Any = literal_column("jobs.held_by IS NOT NULL")
_COUNTS = select(jobs.c.held_by, func.count().label("held")).where(_HELD).group_by(jobs.c.held_by).subquery("counts")
_LIST = (
    select(breakers, func.coalesce(_COUNTS.c.held, 0).label("held"))
    .outerjoin(_COUNTS, _COUNTS.c.held_by == breakers.c.name)
    .order_by(breakers.c.name)
)
_KNOWN = select(breakers.c.name, breakers.c.opened_at)
#: Jobs whose breaker is closed, or gone, or free to be probed.
_FREED = (
    select(jobs.c.id, jobs.c.lane, jobs.c.tenant)
    .outerjoin(breakers, breakers.c.name == jobs.c.held_by)
    .where(
        _HELD,
        jobs.c.due_at > now_us(),
        or_(
            breakers.c.name.is_(None),
            breakers.c.opened_at.is_(None),
            and_(breakers.c.probe_at <= now_us(), jobs.c.attempt == 0),
            breakers.c.probe_at <= now_us() - AFTER_OTHERS_US,
        ),
    )
    .limit(bindparam("most"))
)
_FREE = (
    update(jobs)
    .where(jobs.c.id == bindparam("the_job"), jobs.c.status == "queued", jobs.c.held_by.is_not(None))
    .values(held_by=None, due_at=case((jobs.c.due_at > bindparam("now"), bindparam("now")), else_=jobs.c.due_at))
)


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When a breaker opens, and for how long; times in microseconds."""

    #: Failures in a row.
    threshold: int
    pause_us: int
    longest_pause_us: int


def record_failure(connection: Connection, name: str, job_id: str, error: JobError, rules: BreakerRules) -> bool:
    """A call of the provider failed; returns whether the breaker is open now.

    A probe that fails makes the pause twice as long, up to the longest.
    """
    now = read_clock(connection)
    connection.execute(_INSERT, {"name": name, "pause": rules.pause_us, "now": now})
    counted = {
        "the_name": name,
        "job": job_id,
        "threshold": rules.threshold,
        "longest": rules.longest_pause_us,
        "error": error.model_dump(),
        "now": now,
    }
    return connection.execute(_COUNT, counted).scalar_one() is not None


def record_success(connection: Connection, name: str) -> bool:
    """The provider answered: the breaker is closed and forgets its failures; returns whether there was one."""
    return bool(connection.execute(_CLOSE, {"the_name": name}).rowcount)


def end_probe(connection: Connection, name: str, job_id: str) -> None:
    """The job that was the probe ended without a word of the provider: another one may try."""
    connection.execute(_END_PROBE, {"the_name": name, "job": job_id, "now": read_clock(connection)})


def held_until(connection: Connection, name: str, job_id: str, now: int, probe_us: int) -> int | None:
    """Until when the job must wait, in microseconds; None if it may run: the breaker is closed, or it is the probe.

    The breaker takes another probe after `probe_us` if this one is never heard of again. A job that was the probe and
    is claimed anew has lost its worker: it may try again.
    """
    row = connection.execute(_OPEN, {"the_name": name}).one_or_none()
    if row is not None and (row.probe_at <= now or row.probe_job == job_id):
        begun = {"the_name": name, "job": job_id, "now": now, "give_up": now + probe_us}
        if connection.execute(_BEGIN_PROBE, begun).rowcount:
            return None
        # Somebody else was faster; by now that one may even have been answered.
        row = connection.execute(_OPEN, {"the_name": name}).one_or_none()
    return None if row is None else max(row.probe_at, now + 1)


def is_probe(connection: Connection, name: str, job_id: str) -> bool:
    """Whether the job is the one that may try while the breaker is open."""
    row = connection.execute(_OPEN, {"the_name": name}).one_or_none()
    return row is not None and row.probe_job == job_id


def known(connection: Connection) -> dict[str, bool]:
    """Every breaker that has counted a failure, and whether it is open."""
    return {row.name: row.opened_at is not None for row in connection.execute(_KNOWN)}


def list_breakers(connection: Connection) -> list[dict[str, Any]]:
    """Every breaker that has counted a failure, with how many jobs it holds (`held`)."""
    return [dict(row) for row in connection.execute(_LIST).mappings()]


def reset(connection: Connection, name: str) -> None:
    """Close a breaker by hand. Raises NotFound."""
    if not record_success(connection, name):
        raise NotFound("there is no such breaker, or it has nothing against its provider")


def held_jobs(connection: Connection, most: int) -> list[str]:
    """Jobs that `release_held` would make due: a look without locks."""
    return list(connection.execute(_FREED, {"most": most}).scalars())


def release_held(connection: Connection, most: int) -> dict[str, int]:
    """Make jobs due whose breaker has closed or may be probed, at most `most`; returns how many of each lane."""
    freed = connection.execute(_FREED, {"most": most}).all()
    lock_lanes(connection, [(row.lane, row.tenant) for row in freed])
    now = read_clock(connection)
    counts: dict[str, int] = {}
    for lane, tenant in sorted({(row.lane, row.tenant) for row in freed}):
        work_is_due(connection, lane, tenant, now)
    for row in sorted(freed, key=lambda row: row.id):
        if connection.execute(_FREE, {"the_job": row.id, "now": now}).rowcount:
            counts[row.lane] = counts.get(row.lane, 0) + 1
    return counts
