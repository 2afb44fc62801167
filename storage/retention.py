"""Retention: what has ended long ago is removed, some at a time.

A job goes with its body, attempts, rounds, tool calls, transitions and dead letters. Its messages stay: they are the
session's, and go when somebody deletes that. The hidden session of a stateless job is nobody's and goes with it. Dead
letters nobody has decided about are never removed.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, bindparam, delete, exists, literal_column, select

from storage.clock import now_us
from storage.jobs.redrive import DISCARDED
from storage.tables import (
    attempts,
    bulk_runs,
    dead_letters,
    job_bodies,
    jobs,
    messages,
    outbox,
    quarantine,
    rounds,
    sessions,
    tool_calls,
    transitions,
)

#: As the partial index spells it.
_ENDED: ColumnElement[bool] = literal_column("jobs.status IN ('finished', 'cancelled')")
_OLD_JOBS = (
    select(jobs.c.id)
    .where(_ENDED, jobs.c.ended_at < now_us() - bindparam("keep"))
    .order_by(jobs.c.ended_at)
    .limit(bindparam("most"))
)
#: A letter that was redriven goes with its job, whatever became of that.
_DISCARDED_JOBS = (
    select(dead_letters.c.job_id)
    .where(
        dead_letters.c.resolved_at.is_not(None),
        dead_letters.c.resolved_at < now_us() - bindparam("keep"),
        dead_letters.c.resolution == DISCARDED,
    )
    .order_by(dead_letters.c.resolved_at)
    .limit(bindparam("most"))
)
#: Whoever asks on in one of these holds it, and is left alone: then it is nobody's no longer.
_LOCK_HIDDEN = (
    select(sessions.c.id)
    .where(
        sessions.c.hidden,
        sessions.c.id.in_(select(jobs.c.session_id).where(jobs.c.id.in_(bindparam("ids", expanding=True)))),
    )
    .with_for_update(skip_locked=True)
)
_LOCK = (
    select(jobs.c.id, jobs.c.session_id, sessions.c.hidden)
    .outerjoin(sessions, sessions.c.id == jobs.c.session_id)
    .where(jobs.c.id.in_(bindparam("ids", expanding=True)))
    .where(jobs.c.status.in_(("finished", "cancelled", "dead")))
    .with_for_update(of=jobs, skip_locked=True)
)
_OF_JOBS = (job_bodies, attempts, rounds, tool_calls, transitions, dead_letters, outbox)
_DELETE_OF_JOBS = tuple(delete(table).where(table.c.job_id.in_(bindparam("ids", expanding=True))) for table in _OF_JOBS)
_DELETE_JOBS = delete(jobs).where(jobs.c.id.in_(bindparam("ids", expanding=True)))
#: Somebody may have asked on in a hidden session, by its id.
_WITHOUT_JOBS = select(sessions.c.id).where(
    sessions.c.id.in_(bindparam("ids", expanding=True)), ~exists().where(jobs.c.session_id == sessions.c.id)
)
_DELETE_MESSAGES = delete(messages).where(messages.c.session_id.in_(bindparam("ids", expanding=True)))
_DELETE_SESSIONS = delete(sessions).where(sessions.c.id.in_(bindparam("ids", expanding=True)))
_DELETE_QUARANTINE = delete(quarantine).where(
    quarantine.c.resolved_at.is_not(None), quarantine.c.resolved_at < now_us() - bindparam("keep")
)
_DELETE_BULK_RUNS = delete(bulk_runs).where(
    bulk_runs.c.ended_at.is_not(None), bulk_runs.c.ended_at < now_us() - bindparam("keep")
)


def old_jobs(connection: Connection, keep_us: int, most: int) -> list[str]:
    """Jobs that ended, or were discarded, longer than `keep_us` ago; the oldest first, at most `most`."""
    sought = {"keep": keep_us, "most": most}
    ended = list(connection.execute(_OLD_JOBS, sought).scalars())
    discarded = connection.execute(_DISCARDED_JOBS, sought).scalars() if len(ended) < most else ()
    return list(dict.fromkeys([*ended, *discarded]))[:most]


def remove_jobs(connection: Connection, job_ids: Sequence[str]) -> int:
    """Remove these ended jobs with all that is kept of them; returns how many there were."""
    sought = {"ids": sorted(job_ids)}
    # Sessions before jobs, as everywhere. Whoever redrives one of them holds its row; it is left alone.
    locked = set(connection.execute(_LOCK_HIDDEN, sought).scalars())
    found = [row for row in connection.execute(_LOCK, sought) if not row.hidden or row.session_id in locked]
    if not found:
        return 0
    ids = {"ids": [row.id for row in found]}
    for statement in _DELETE_OF_JOBS:
        connection.execute(statement, ids)
    connection.execute(_DELETE_JOBS, ids)
    hidden = {"ids": sorted({row.session_id for row in found if row.hidden})}
    left = {"ids": list(connection.execute(_WITHOUT_JOBS, hidden).scalars())} if hidden["ids"] else hidden
    if left["ids"]:
        connection.execute(_DELETE_MESSAGES, left)
        connection.execute(_DELETE_SESSIONS, left)
    return len(found)


def remove_decided(connection: Connection, keep_us: int) -> int:
    """Remove quarantined messages that were dealt with, and bulk runs that ended, longer than `keep_us` ago."""
    sought = {"keep": keep_us}
    return sum(connection.execute(query, sought).rowcount for query in (_DELETE_QUARANTINE, _DELETE_BULK_RUNS))
