"""The guarded UPDATE of a job, and with it everything that must be true afterwards.

A terminal move hands the session on to its next job; any other one puts the job back into its lane. All of it commits
or none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, bindparam, insert, select, update

from schemas.agent_message import AgentMessage
from schemas.border_text import clean_json, clean_text
from schemas.errors import JobError, MalformedRequest, TransitionRefused
from schemas.ids import new_id
from schemas.stream_event import ToolNote
from storage.database import RunAgain
from storage.jobs.statements import (
    MOVE_LEAF,
    Recorded,
    find_heir,
    leave_lane,
    promote,
    read_clock,
    record,
    work_is_due,
)
from storage.lanes import alone_lane, is_alone
from storage.locks import lock_lanes, lock_session
from storage.messages import NewMessage, insert_messages
from storage.tables import NAME_LENGTH, attempts, dead_letters, jobs

_JOB = select(jobs).where(jobs.c.id == bindparam("job"))
#: A renewal and a wish to cancel move no epoch: only the row's lock keeps them out of a transition under way.
_LOCKED_JOB = _JOB.with_for_update()
_ADVANCE = (
    update(jobs)
    .where(jobs.c.id == bindparam("the_job"), jobs.c.epoch == bindparam("old_epoch"))
    .values(
        epoch=jobs.c.epoch + 1,
        status=bindparam("new_status"),
        head=bindparam("new_head"),
        due_at=bindparam("due"),
        failures=bindparam("new_failures"),
        releases=bindparam("new_releases"),
        lost_in_company=bindparam("new_lost"),
        lane=bindparam("new_lane"),
        held_by=None,
        worker=None,
        lease_until=None,
        outcome=bindparam("new_outcome"),
        error_code=bindparam("new_error"),
        ended_at=bindparam("ended"),
    )
)
_END_ATTEMPT = (
    update(attempts)
    .where(attempts.c.job_id == bindparam("the_job"), attempts.c.attempt == bindparam("the_attempt"))
    .values(
        ended_at=bindparam("now"),
        ending=bindparam("kind"),
        error=bindparam("the_error"),
        error_class=bindparam("the_class"),
        trace=bindparam("the_trace"),
        shown_text=bindparam("the_text"),
        shown_tools=bindparam("the_tools"),
    )
)
_INSERT_DEAD_LETTER = insert(dead_letters)


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """What is kept of an attempt that ended without an answer."""

    error_class: str | None = None
    trace: str | None = None
    shown_text: str = ""
    shown_tools: Sequence[ToolNote] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """Where a transition takes the job."""

    kind: str
    event_kind: str
    fields: dict[str, Any]
    status: str
    due_at: int | None = None
    failures: int | None = None
    releases: int | None = None
    #: Losses in company so far, if this is another one.
    lost: int | None = None
    #: The lane it goes to, if it changes.
    lane: str | None = None
    outcome: str | None = None
    error: JobError | None = None


NOTHING_SHOWN = AttemptRecord()


def hold(connection: Connection, job_id: str, epoch: int, *statuses: str, may_isolate: bool = False) -> tuple[Any, int]:
    """Lock what the transition will touch, in order, and read the job under these locks; with it, the time.

    With `may_isolate` the job may be moved to its queue's lane for jobs that run alone.
    Raises TransitionRefused unless the job stands at `epoch` in one of `statuses`.
    """
    job = expect(connection, _JOB, job_id, epoch, statuses)
    if connection.dialect.name != "sqlite":
        heir = find_heir(connection, job.session_id, job.session_seq)
        touched = [(job.lane, job.tenant)]
        if heir is not None:
            touched.append((heir.lane, heir.tenant))
        if may_isolate:
            touched.append((alone_lane(job.queue), job.tenant))
        lock_lanes(connection, touched)
        lock_session(connection, job.session_id)
        again = find_heir(connection, job.session_id, job.session_seq)
        if (again and again.lane) not in (job.lane, heir and heir.lane, None):
            raise RunAgain  # the next job arrived in between, in a lane that is not locked
        job = expect(connection, _LOCKED_JOB, job_id, epoch, statuses)
    return job, read_clock(connection)


def expect(connection: Connection, query: Select[Any], job_id: str, epoch: int, statuses: tuple[str, ...]) -> Any:
    job = connection.execute(query, {"job": job_id}).one_or_none()
    if job is None or job.epoch != epoch or job.status not in statuses:
        raise TransitionRefused(f"job {job_id}: epoch {epoch} is over")
    return job


def bury(
    connection: Connection,
    job: Any,
    now: int,
    error: JobError,
    kind: str,
    attempt: AttemptRecord,
    failures: int | None = None,
    lost: int | None = None,
) -> Recorded:
    """The job is dead: keep its dead letter and tell of it."""
    dead_letter_id = new_id()
    connection.execute(
        _INSERT_DEAD_LETTER,
        {
            "id": dead_letter_id,
            "tenant": job.tenant,
            "job_id": job.id,
            "queue": job.queue,
            "epoch": job.epoch + 1,
            "error": error.model_dump(),
            "error_code": error.code,
            "agent_framework": job.agent_framework,
            "model": job.model,
            "created_at": now,
        },
    )
    fields = {"error": error.model_dump(), "dead_letter_id": dead_letter_id}
    return move_job(
        connection, job, now, Move(kind, "failed", fields, "dead", failures=failures, lost=lost, error=error), attempt
    )


def save_answer(connection: Connection, job: Any, response: Sequence[AgentMessage], status: str, now: int) -> list[str]:
    """Save the messages below the one answered and make them the active branch; returns their ids."""
    if not response:
        return []
    new = [NewMessage.of(message, job_id=job.id, status=status) for message in response]
    leaf = insert_messages(connection, new, job.tenant, job.session_id, parent_id=job.user_message_id, now=now)
    connection.execute(MOVE_LEAF, {"the_session": job.session_id, "leaf": leaf, "now": now})
    return [message.id for message in new]


def move_job(connection: Connection, job: Any, now: int, move: Move, attempt: AttemptRecord) -> Recorded:
    """Make the transition and return it. Raises TransitionRefused."""
    terminal = move.status != "queued"
    lane = move.lane or job.lane
    moved = connection.execute(
        _ADVANCE,
        {
            "the_job": job.id,
            "old_epoch": job.epoch,
            "new_status": move.status,
            "new_head": job.head and not terminal,
            "due": job.due_at if move.due_at is None else move.due_at,
            "new_failures": job.failures if move.failures is None else move.failures,
            "new_releases": job.releases if move.releases is None else move.releases,
            "new_lost": job.lost_in_company if move.lost is None else move.lost,
            "new_lane": lane,
            "new_outcome": move.outcome,
            "new_error": move.error.code if move.error else None,
            "ended": now if terminal else None,
        },
    )
    if moved.rowcount != 1:
        raise TransitionRefused(f"job {job.id}: epoch {job.epoch} is over")
    if job.status == "running":
        leave_lane(connection, job.lane, job.tenant)
        _end_attempt(connection, job, now, move, attempt)
    wakes, due_in_us = None, None
    if not terminal:
        due_at = move.due_at or now
        work_is_due(connection, lane, job.tenant, due_at)
        wakes = lane if due_at <= now and not is_alone(lane) else None
        due_in_us = max(due_at - now, 0)
    elif job.head and (heir := find_heir(connection, job.session_id, job.session_seq)) is not None:
        promote(connection, heir)
        wakes = None if is_alone(heir.lane) else heir.lane
    return record(
        connection,
        tenant=job.tenant,
        job_id=job.id,
        epoch=job.epoch + 1,
        kind=move.kind,
        at=now,
        event_kind=move.event_kind,
        queue=job.queue,
        fields=move.fields,
        wakes=wakes,
        due_in_us=due_in_us,
    )


def _end_attempt(connection: Connection, job: Any, now: int, move: Move, attempt: AttemptRecord) -> None:
    connection.execute(
        _END_ATTEMPT,
        {
            "the_job": job.id,
            "the_attempt": job.attempt,
            "now": now,
            "kind": move.kind,
            "the_error": move.error.model_dump() if move.error else None,
            "the_class": attempt.error_class and attempt.error_class[:NAME_LENGTH],
            "the_trace": attempt.trace and clean_text(attempt.trace),
            "the_text": clean_text(attempt.shown_text) or None,
            "the_tools": storable_notes(attempt.shown_tools) or None,
        },
    )


def storable_notes(notes: Sequence[ToolNote]) -> Any:
    try:
        return clean_json(list(notes))
    except MalformedRequest:
        return None  # a handler's arguments that no JSON can say
