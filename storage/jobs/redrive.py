"""Redrive and discard: what a person decides about a dead letter, each by compare-and-set.

A redrive reopens the same job under its newer epoch, as if it were accepted anew: a new place in its session, no
failures, a whole deadline. What it has kept of its progress it continues from.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, exists, select, update

from schemas.errors import Conflict, NotFound
from storage.clock import now_us, to_us
from storage.database import RunAgain
from storage.jobs.accept import BUSY, first_rank
from storage.jobs.refuse import NO_DIGEST
from storage.jobs.statements import UNFINISHED, Recorded, read_clock, record, work_is_due
from storage.locks import lock_lanes, lock_session
from storage.tables import dead_letters, job_bodies, jobs, messages, sessions

REDRIVEN = "redriven"
DISCARDED = "discarded"

_LETTER = select(dead_letters).where(
    dead_letters.c.id == bindparam("letter"), dead_letters.c.tenant == bindparam("owner")
)
_JOB = select(jobs, job_bodies.c.body, job_bodies.c.digest).join(job_bodies, job_bodies.c.job_id == jobs.c.id)
_DEAD_JOB = _JOB.where(jobs.c.id == bindparam("job"))
_LOCKED_JOB = _DEAD_JOB.with_for_update(of=jobs)
_RESOLVE = (
    update(dead_letters)
    .where(dead_letters.c.id == bindparam("letter"), dead_letters.c.resolution.is_(None))
    .values(resolution=bindparam("how"), resolved_at=bindparam("now"))
)
_TAKE_PLACE = (
    update(sessions)
    .where(sessions.c.id == bindparam("session"))
    .values(next_seq=sessions.c.next_seq + 1, updated_at=now_us())
    .returning((sessions.c.next_seq - 1).label("place"))
)
_REOPEN = (
    update(jobs)
    .where(jobs.c.id == bindparam("the_job"), jobs.c.epoch == bindparam("old_epoch"), jobs.c.status == "dead")
    .values(
        epoch=jobs.c.epoch + 1,
        status="queued",
        lane=jobs.c.queue,
        session_seq=bindparam("place"),
        head=bindparam("is_head"),
        rank=bindparam("new_rank"),
        due_at=bindparam("now"),
        deadline_at=bindparam("deadline"),
        failures=0,
        releases=0,
        lost_in_company=0,
        wrote=False,
        cancel_reason=None,
        error_code=None,
        started_at=None,
        ended_at=None,
    )
)
_ADVANCE = (
    update(jobs)
    .where(jobs.c.id == bindparam("the_job"), jobs.c.epoch == bindparam("old_epoch"), jobs.c.status == "dead")
    .values(epoch=jobs.c.epoch + 1)
)
_child = messages.alias("child")
#: It is asked anew, so the conversation goes on below it. One that is talked on from already keeps its place: below
#: its own descendants it would make a circle.
_ASK_ANEW = (
    update(messages)
    .where(
        messages.c.id == bindparam("the_message"),
        messages.c.session_id == bindparam("session"),
        ~exists().where(_child.c.session_id == bindparam("session"), _child.c.parent_id == messages.c.id),
        ~exists().where(sessions.c.id == bindparam("session"), sessions.c.active_leaf == messages.c.id),
        # Nor one that another job is about to answer: that answer would stand below it first.
        ~exists().where(
            UNFINISHED,
            jobs.c.session_id == bindparam("session"),
            jobs.c.user_message_id == messages.c.id,
            jobs.c.id != bindparam("the_job"),
        ),
    )
    .values(parent_id=None, placed=False)
)


def redrive(connection: Connection, tenant: str, letter_id: str) -> Recorded:
    """Reopen the job of a dead letter; returns its `queued` event.

    Raises NotFound, and Conflict if somebody has decided about the letter already, or the job can never run.
    """
    letter, job = _read(connection, tenant, letter_id)
    if job.digest == NO_DIGEST:
        raise Conflict("this job was refused when it came in, so there is nothing to run: discard it and send it again")
    if connection.dialect.name != "sqlite":
        lock_lanes(connection, [(job.queue, tenant)])
        lock_session(connection, job.session_id)
        job = _still_dead(connection, letter)
    now = read_clock(connection)
    work_is_due(connection, job.queue, tenant, now)
    # One after the other, as in an acceptance: the place is given under the session's lock.
    busy = bool(connection.execute(BUSY, {"session": job.session_id}).scalar_one())
    place = connection.execute(_TAKE_PLACE, {"session": job.session_id}).scalar_one()
    reopened = connection.execute(
        _REOPEN,
        {
            "the_job": job.id,
            "old_epoch": letter.epoch,
            "place": place,
            "is_head": not busy,
            "new_rank": first_rank(job.body.get("priority", 0)),
            "now": now,
            "deadline": now + to_us(job.body.get("deadline_s", 3600.0)),
        },
    )
    if reopened.rowcount != 1:
        raise RunAgain
    if not job.regenerates:
        connection.execute(
            _ASK_ANEW, {"the_message": job.user_message_id, "session": job.session_id, "the_job": job.id}
        )
    _resolve(connection, letter, REDRIVEN, now)
    return record(
        connection,
        tenant=tenant,
        job_id=job.id,
        epoch=letter.epoch + 1,
        kind="redrive",
        at=now,
        event_kind="queued",
        queue=job.queue,
        fields={"queue": job.queue, "session_id": job.session_id},
        wakes=None if busy else job.queue,
    )


def discard(connection: Connection, tenant: str, letter_id: str) -> Recorded:
    """Give a dead letter up for good; the job stays dead, and retention may remove it.

    Returns its `failed` event, said again. Raises NotFound, and Conflict if somebody has decided already.
    """
    letter, job = _read(connection, tenant, letter_id)
    if connection.dialect.name != "sqlite":
        lock_session(connection, job.session_id)  # or its deletion might leave this transition's row behind
        job = _still_dead(connection, letter)
    now = read_clock(connection)
    if connection.execute(_ADVANCE, {"the_job": job.id, "old_epoch": letter.epoch}).rowcount != 1:
        raise RunAgain
    _resolve(connection, letter, DISCARDED, now)
    return record(
        connection,
        tenant=tenant,
        job_id=job.id,
        epoch=letter.epoch + 1,
        kind="discard",
        at=now,
        event_kind="failed",
        fields={"error": letter.error, "dead_letter_id": letter.id},
    )


def _read(connection: Connection, tenant: str, letter_id: str) -> tuple[Any, Any]:
    letter = connection.execute(_LETTER, {"letter": letter_id, "owner": tenant}).one_or_none()
    if letter is None:
        raise NotFound("there is no such dead letter")
    if letter.resolution is not None:
        raise Conflict(f"this dead letter was {letter.resolution} already")
    job = connection.execute(_DEAD_JOB, {"job": letter.job_id}).one_or_none()
    if job is None:
        raise NotFound("the job of this dead letter is gone")
    if (job.status, job.epoch) != ("dead", letter.epoch):
        raise Conflict("the job has moved on since it was dead-lettered")
    return letter, job


def _still_dead(connection: Connection, letter: Any) -> Any:
    job = connection.execute(_LOCKED_JOB, {"job": letter.job_id}).one_or_none()
    if job is None or (job.status, job.epoch) != ("dead", letter.epoch):
        raise RunAgain  # somebody else was here in between: read anew, and say what they did
    return job


def _resolve(connection: Connection, letter: Any, how: str, now: int) -> None:
    if connection.execute(_RESOLVE, {"letter": letter.id, "how": how, "now": now}).rowcount != 1:
        raise RunAgain
