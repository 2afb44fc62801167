"""How a job leaves the state it is in: one guarded UPDATE, and with it everything that must be true afterwards.

A terminal transition saves its messages, moves the session's active branch and hands the session on to its next job.
Any other one puts the job back into its lane. All of it commits or none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, bindparam, insert, select, update

from schemas.agent_message import AgentMessage, Usage
from schemas.border_text import clean_json, clean_text
from schemas.errors import JobError, MalformedRequest, TransitionRefused
from schemas.ids import new_id
from schemas.job_event import rfc3339
from schemas.stream_event import Outcome, ToolNote
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
from storage.locks import lock_lanes, lock_session
from storage.messages import CANCELLED, COMPLETE, NewMessage, insert_messages
from storage.tables import CODE_LENGTH, NAME_LENGTH, attempts, dead_letters, jobs

#: The second failure is the last.
MAX_FAILURES = 2
#: An orderly shutdown costs no retry; a job that meets this many is charged for the next.
MAX_RELEASES = 5

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
        worker=None,
        lease_until=None,
        outcome=bindparam("new_outcome"),
        error_code=bindparam("new_error"),
        ended_at=bindparam("ended"),
    )
)
_REBUILD = (
    update(jobs)
    .where(jobs.c.id == bindparam("the_job"), jobs.c.epoch == bindparam("old_epoch"), jobs.c.status == "running")
    .values(epoch=jobs.c.epoch + 1)
    .returning(jobs.c.tenant)
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
class _Move:
    """Where a transition takes the job."""

    kind: str
    event_kind: str
    fields: dict[str, Any]
    status: str
    due_at: int | None = None
    failures: int | None = None
    releases: int | None = None
    outcome: str | None = None
    error: JobError | None = None


NOTHING_SHOWN = AttemptRecord()


def finish(
    connection: Connection,
    job_id: str,
    epoch: int,
    response: Sequence[AgentMessage],
    usage: Usage | None,
    outcome: Outcome = "ok",
) -> Recorded:
    """The attempt answered: save the answer. Raises TransitionRefused if the attempt has lost its job."""
    job, now = _hold(connection, job_id, epoch, "running")
    message_ids = _save_answer(connection, job, response, COMPLETE, now)
    fields = {
        "outcome": outcome,
        "response": [message.to_json() for message in response],
        "usage": usage,
        "message_ids": message_ids,
    }
    return _move(connection, job, now, _Move("finish", "final", fields, "finished", outcome=outcome), NOTHING_SHOWN)


def fail(
    connection: Connection,
    job_id: str,
    epoch: int,
    error: JobError,
    *,
    delay_us: int,
    charged: bool = True,
    attempt: AttemptRecord = NOTHING_SHOWN,
    response: Sequence[AgentMessage] = (),
) -> Recorded:
    """The attempt failed: retry it once, dead-letter it the second time or when trying again is useless.

    A failure that is not `charged` (the provider is busy) waits without using the retry, bounded by the deadline only.
    A job that somebody wants stopped is cancelled instead, with `response` as its partial text.
    Raises TransitionRefused.
    """
    job, now = _hold(connection, job_id, epoch, "running")
    if job.cancel_reason is not None:
        return _cancel(connection, job, now, job.cancel_reason, response, attempt)
    # Whatever a handler raised, saying so must not fail as well.
    error = error.model_copy(update={"code": error.code[:CODE_LENGTH], "message": clean_text(error.message)})
    return _fail(connection, job, now, error, "fail" if charged else "defer", delay_us, attempt)


def release(
    connection: Connection,
    job_id: str,
    epoch: int,
    *,
    reason: str = "shutdown",
    attempt: AttemptRecord = NOTHING_SHOWN,
    response: Sequence[AgentMessage] = (),
) -> Recorded:
    """The worker is shutting down: another one takes over at once, and no retry is used. Raises TransitionRefused."""
    job, now = _hold(connection, job_id, epoch, "running")
    if job.cancel_reason is not None:
        return _cancel(connection, job, now, job.cancel_reason, response, attempt)
    if job.releases >= MAX_RELEASES:
        error = JobError(code="released_too_often", message="the workers kept shutting down under it", retryable=True)
        return _fail(connection, job, now, error, "fail", 0, attempt)
    move = _Move("release", "requeued", {"reason": reason}, "queued", due_at=now, releases=job.releases + 1)
    return _move(connection, job, now, move, attempt)


def cancel(
    connection: Connection,
    job_id: str,
    epoch: int,
    reason: str,
    response: Sequence[AgentMessage] = (),
    attempt: AttemptRecord = NOTHING_SHOWN,
) -> Recorded:
    """Stop a queued job, or end an attempt that was told to stop; partial text is saved and marked.

    Raises TransitionRefused.
    """
    job, now = _hold(connection, job_id, epoch, "queued", "running")
    return _cancel(connection, job, now, reason, response, attempt)


def expire(connection: Connection, job_id: str, epoch: int, as_of_us: int | None = None) -> Recorded:
    """Nobody renewed the attempt's lease: its worker is lost. Any process may find that out.

    The lease must have been past at `as_of_us`, the reading of the clock by which the caller judged it, so that a step
    of the clock since then expires nothing. Raises TransitionRefused if it was not, or was renewed after all.
    """
    job, now = _hold(connection, job_id, epoch, "running")
    if job.lease_until >= (now if as_of_us is None else min(now, as_of_us)):
        raise TransitionRefused(f"job {job_id}: its lease was renewed")
    if job.cancel_reason is not None:
        return _cancel(connection, job, now, job.cancel_reason, (), NOTHING_SHOWN)
    error = JobError(code="worker_lost", message="the worker died or lost touch while it answered", retryable=True)
    return _fail(connection, job, now, error, "expire", 0, AttemptRecord(error_class="WorkerLost"))


def lapse(connection: Connection, job_id: str, epoch: int) -> Recorded:
    """The deadline passed while the job was queued: it is dead-lettered. Raises TransitionRefused."""
    job, now = _hold(connection, job_id, epoch, "queued")
    if job.deadline_at > now:
        raise TransitionRefused(f"job {job_id}: its deadline has not passed")
    error = JobError(code="deadline", message="the deadline passed while the job was waiting", retryable=False)
    return _bury(connection, job, now, error, "lapse", NOTHING_SHOWN)


def rebuild(connection: Connection, job_id: str, epoch: int, text: str, tools: Sequence[ToolNote]) -> Recorded:
    """The log lost entries of a running attempt: open an epoch whose `snapshot` says all that was shown.

    Only the attempt's own writer does this. Raises TransitionRefused.
    """
    row = connection.execute(_REBUILD, {"the_job": job_id, "old_epoch": epoch}).one_or_none()
    if row is None:
        raise TransitionRefused(f"job {job_id}: epoch {epoch} is over")
    return record(
        connection,
        tenant=row.tenant,
        job_id=job_id,
        epoch=epoch + 1,
        kind="rebuild",
        at=read_clock(connection),
        event_kind="snapshot",
        fields={"text": text, "tools": list(tools)},
    )


def _hold(connection: Connection, job_id: str, epoch: int, *statuses: str) -> tuple[Any, int]:
    """Lock what the transition will touch, in order, and read the job under these locks.

    Raises TransitionRefused unless the job stands at `epoch` in one of `statuses`.
    """
    job = _expect(connection, _JOB, job_id, epoch, statuses)
    if connection.dialect.name != "sqlite":
        heir = find_heir(connection, job.session_id, job.session_seq)
        lock_lanes(connection, [(job.lane, job.tenant)] + ([(heir.lane, heir.tenant)] if heir else []))
        lock_session(connection, job.session_id)
        again = find_heir(connection, job.session_id, job.session_seq)
        if (again and again.lane) not in (job.lane, heir and heir.lane, None):
            raise RunAgain  # the next job arrived in between, in a lane that is not locked
        job = _expect(connection, _LOCKED_JOB, job_id, epoch, statuses)
    return job, read_clock(connection)


def _expect(connection: Connection, query: Select[Any], job_id: str, epoch: int, statuses: tuple[str, ...]) -> Any:
    job = connection.execute(query, {"job": job_id}).one_or_none()
    if job is None or job.epoch != epoch or job.status not in statuses:
        raise TransitionRefused(f"job {job_id}: epoch {epoch} is over")
    return job


def _fail(
    connection: Connection, job: Any, now: int, error: JobError, kind: str, delay_us: int, attempt: AttemptRecord
) -> Recorded:
    failures = job.failures + (0 if kind == "defer" else 1)
    due_at = now + delay_us
    if not error.retryable or failures >= MAX_FAILURES or due_at >= job.deadline_at:
        return _bury(connection, job, now, error, kind, attempt, failures)
    fields = {"error": error.model_dump(), "retry_at": rfc3339(due_at)}
    move = _Move(kind, "retrying", fields, "queued", due_at=due_at, failures=failures, error=error)
    return _move(connection, job, now, move, attempt)


def _bury(
    connection: Connection,
    job: Any,
    now: int,
    error: JobError,
    kind: str,
    attempt: AttemptRecord,
    failures: int | None = None,
) -> Recorded:
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
            "created_at": now,
        },
    )
    fields = {"error": error.model_dump(), "dead_letter_id": dead_letter_id}
    return _move(connection, job, now, _Move(kind, "failed", fields, "dead", failures=failures, error=error), attempt)


def _cancel(
    connection: Connection,
    job: Any,
    now: int,
    reason: str,
    response: Sequence[AgentMessage],
    attempt: AttemptRecord,
) -> Recorded:
    message_ids = _save_answer(connection, job, response, CANCELLED, now)
    fields = {"reason": reason, "response": [m.to_json() for m in response], "message_ids": message_ids}
    return _move(connection, job, now, _Move("cancel", "cancelled", fields, "cancelled"), attempt)


def _save_answer(
    connection: Connection, job: Any, response: Sequence[AgentMessage], status: str, now: int
) -> list[str]:
    """Save the messages below the one answered and make them the active branch; returns their ids."""
    if not response:
        return []
    new = [NewMessage.of(message, job_id=job.id, status=status) for message in response]
    leaf = insert_messages(connection, new, job.tenant, job.session_id, parent_id=job.user_message_id, now=now)
    connection.execute(MOVE_LEAF, {"the_session": job.session_id, "leaf": leaf, "now": now})
    return [message.id for message in new]


def _move(connection: Connection, job: Any, now: int, move: _Move, attempt: AttemptRecord) -> Recorded:
    terminal = move.status != "queued"
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
        work_is_due(connection, job.lane, job.tenant, due_at)
        wakes = job.lane if due_at <= now else None
        due_in_us = max(due_at - now, 0)
    elif job.head and (heir := find_heir(connection, job.session_id, job.session_seq)) is not None:
        promote(connection, heir, now)
        wakes = heir.lane
    return record(
        connection,
        tenant=job.tenant,
        job_id=job.id,
        epoch=job.epoch + 1,
        kind=move.kind,
        at=now,
        event_kind=move.event_kind,
        fields=move.fields,
        wakes=wakes,
        due_in_us=due_in_us,
    )


def _end_attempt(connection: Connection, job: Any, now: int, move: _Move, attempt: AttemptRecord) -> None:
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
            "the_tools": _storable(attempt.shown_tools) or None,
        },
    )


def _storable(notes: Sequence[ToolNote]) -> Any:
    try:
        return clean_json(list(notes))
    except MalformedRequest:
        return None  # a handler's arguments that no JSON can say
