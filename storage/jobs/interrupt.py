"""Interrupt: a new message stops what its session is still answering, and what waits there to be answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from storage.database import CommitAndRunAgain, RunAgain
from storage.jobs import settle
from storage.jobs.statements import UNFINISHED, Recorded, make_lane
from storage.locks import LaneKey, lock_lanes
from storage.tables import jobs

#: What the interrupted jobs say of their end.
REASON = "interrupted"

_UNFINISHED_JOBS = (
    select(jobs.c.id, jobs.c.epoch, jobs.c.status, jobs.c.lane, jobs.c.tenant, jobs.c.cancel_reason)
    .where(UNFINISHED, jobs.c.session_id == bindparam("session"))
    .order_by(jobs.c.session_seq.desc())
)
_FLAG = (
    update(jobs)
    .where(jobs.c.id == bindparam("the_job"), jobs.c.status == "running", jobs.c.cancel_reason.is_(None))
    .values(cancel_reason=REASON)
)


@dataclass(frozen=True, slots=True)
class Interrupted:
    """What was stopped to make way for a job."""

    #: The `cancelled` events of jobs that were waiting.
    cancelled: tuple[Recorded, ...] = ()
    #: Jobs that run and are told to stop; their workers do that, and their terminal events tell when.
    stopping: tuple[str, ...] = ()


NOTHING_STOPPED = Interrupted()


def lock_lanes_of(connection: Connection, session_id: str, own: LaneKey) -> frozenset[LaneKey]:
    """Lock the lanes of the session's unfinished jobs and one's own, before the session itself; returns which.

    Raises CommitAndRunAgain if one's own had to be made: a lane that is not there cannot be locked in its turn. What is
    another tenant's is not touched: the session will turn out to be missing.
    """
    found = connection.execute(_UNFINISHED_JOBS, {"session": session_id}).all()
    others = {(row.lane, row.tenant) for row in found if row.tenant == own[1]}
    if others and make_lane(connection, *own):
        raise CommitAndRunAgain
    lanes = frozenset({own, *others})
    lock_lanes(connection, lanes)
    return lanes


def interrupt(connection: Connection, session_id: str, locked: frozenset[LaneKey]) -> Interrupted:
    """Cancel what waits in the session and flag what runs; the caller has locked these lanes, and the session.

    The last to come is cancelled first, so that the session is handed on to none of them.
    """
    found: Any = connection.execute(_UNFINISHED_JOBS, {"session": session_id}).all()
    if any((row.lane, row.tenant) not in locked for row in found):
        raise RunAgain  # a job arrived in between, in a lane that is not locked
    cancelled = tuple(settle.cancel(connection, row.id, row.epoch, REASON) for row in found if row.status == "queued")
    running = [row.id for row in found if row.status == "running"]
    for job_id in running:
        connection.execute(_FLAG, {"the_job": job_id})
    return Interrupted(cancelled, tuple(running))
