"""Jobs as people ask for them: by id, in lists, with the event that ended them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select, tuple_

from schemas.errors import NotFound
from schemas.job_event import EventId
from storage.jobs.statements import Recorded
from storage.tables import attempts, job_bodies, jobs, transitions

ENDED_STATUSES = frozenset({"finished", "dead", "cancelled"})

_OWN_JOB = (jobs.c.id == bindparam("job")) & (jobs.c.tenant == bindparam("owner"))
_JOB = select(jobs, job_bodies.c.body).join(job_bodies, job_bodies.c.job_id == jobs.c.id).where(_OWN_JOB)
_LAST_EVENT = select(transitions.c.epoch, transitions.c.event).where(
    transitions.c.job_id == bindparam("job"), transitions.c.epoch == bindparam("epoch")
)
_STATE = select(jobs.c.status, jobs.c.epoch).where(_OWN_JOB)
_STATES = select(jobs.c.id, jobs.c.status, jobs.c.epoch).where(jobs.c.id.in_(bindparam("jobs", expanding=True)))
_ATTEMPTS = select(attempts).where(attempts.c.job_id == bindparam("job")).order_by(attempts.c.attempt)


def get_job(connection: Connection, tenant: str, job_id: str) -> dict[str, Any]:
    """The job's row with its `body`, and `last_event`, the event of its last transition as JSON text.

    Raises NotFound if it is missing or another tenant's.
    """
    row = connection.execute(_JOB, {"job": job_id, "owner": tenant}).mappings().one_or_none()
    if row is None:
        raise NotFound("there is no such job")
    event = connection.execute(_LAST_EVENT, {"job": job_id, "epoch": row["epoch"]}).one_or_none()
    return {**row, "last_event": event.event if event is not None else None}


def get_attempts(connection: Connection, job_id: str) -> list[dict[str, Any]]:
    """Every attempt of the job, in order."""
    return [dict(row) for row in connection.execute(_ATTEMPTS, {"job": job_id}).mappings()]


def list_jobs(
    connection: Connection,
    tenant: str,
    *,
    limit: int,
    before: str | None = None,
    status: str | None = None,
    session_id: str | None = None,
    queue: str | None = None,
) -> list[dict[str, Any]]:
    """The tenant's jobs, newest first; `before` is the id the previous page ended with.

    By time of acceptance: a producer may choose ids that have no order.
    """
    query = select(jobs).where(jobs.c.tenant == tenant)
    if before is not None:
        last = select(jobs.c.created_at, jobs.c.id).where(jobs.c.id == before, jobs.c.tenant == tenant)
        query = query.where(tuple_(jobs.c.created_at, jobs.c.id) < last.scalar_subquery())
    if status is not None:
        query = query.where(jobs.c.status == status)
    if session_id is not None:
        query = query.where(jobs.c.session_id == session_id)
    if queue is not None:
        query = query.where(jobs.c.queue == queue)
    return [
        dict(row)
        for row in connection.execute(
            query.order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(limit)
        ).mappings()
    ]


def job_state(connection: Connection, tenant: str, job_id: str) -> tuple[str, int]:
    """(status, epoch) of a job; raises NotFound."""
    row = connection.execute(_STATE, {"job": job_id, "owner": tenant}).one_or_none()
    if row is None:
        raise NotFound("there is no such job")
    return row.status, row.epoch


def job_states(connection: Connection, job_ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """(status, epoch) of each of these jobs that there is: one question for many streams."""
    if not job_ids:
        return {}
    return {row.id: (row.status, row.epoch) for row in connection.execute(_STATES, {"jobs": list(job_ids)})}


def last_event(connection: Connection, tenant: str, job_id: str) -> tuple[EventId, bytes, bool]:
    """The event of the job's last transition: its id, its bytes, and whether it is terminal. Raises NotFound."""
    status, epoch = job_state(connection, tenant, job_id)
    row = connection.execute(_LAST_EVENT, {"job": job_id, "epoch": epoch}).one()
    return EventId(epoch, 1), row.event.encode(), status in ENDED_STATUSES


_TRANSITION = select(transitions.c.kind, transitions.c.event).where(
    transitions.c.job_id == bindparam("job"), transitions.c.epoch == bindparam("epoch")
)


#: By the job alone: for pairs SQLite would read every transition there is.
_TRANSITIONS = select(transitions.c.job_id, transitions.c.epoch, transitions.c.kind, transitions.c.event).where(
    transitions.c.job_id.in_(bindparam("jobs", expanding=True))
)


def find_transitions(connection: Connection, sought: Sequence[tuple[str, int]]) -> list[Recorded]:
    """The transitions that opened these epochs, `(job_id, epoch)` each, of those that there are."""
    if not sought:
        return []
    wanted = set(sought)
    rows = connection.execute(_TRANSITIONS, {"jobs": sorted({job_id for job_id, _ in wanted})})
    return [
        Recorded(row.job_id, row.epoch, row.kind, row.event.encode())
        for row in rows
        if (row.job_id, row.epoch) in wanted
    ]


def find_transition(connection: Connection, job_id: str, epoch: int) -> Recorded | None:
    """The transition that opened an epoch, by which a commit of unknown fate is looked up; None if there is none."""
    row = connection.execute(_TRANSITION, {"job": job_id, "epoch": epoch}).one_or_none()
    return None if row is None else Recorded(job_id, epoch, row.kind, row.event.encode())
