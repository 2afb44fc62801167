"""How a job leaves the state it is in, one function for each way.

A terminal transition saves its messages and moves the session's active branch; what all of them have in common is in
move.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, exists, literal_column, select, update

from schemas.agent_message import AgentMessage, Usage
from schemas.border_text import clean_text
from schemas.errors import JobError, TransitionRefused
from schemas.job_event import rfc3339
from schemas.stream_event import Outcome, ToolNote
from storage.jobs.move import NOTHING_SHOWN, AttemptRecord, Move, bury, hold, move_job, save_answer
from storage.jobs.progress import read_progress
from storage.jobs.statements import Recorded, read_clock, record
from storage.lanes import alone_lane, is_alone
from storage.messages import CANCELLED, COMPLETE
from storage.tables import CODE_LENGTH, attempts, jobs

#: The second failure is the last; but a job lost twice in company runs once more, alone.
MAX_FAILURES = 2
#: An orderly shutdown costs no retry; a job that meets this many is charged for the next.
MAX_RELEASES = 5

_REBUILD = (
    update(jobs)
    .where(jobs.c.id == bindparam("the_job"), jobs.c.epoch == bindparam("old_epoch"), jobs.c.status == "running")
    .values(epoch=jobs.c.epoch + 1)
    .returning(jobs.c.tenant)
)
#: As the partial indexes spell it.
_RUNNING: ColumnElement[bool] = literal_column("jobs.status = 'running'")
_EXPIRED: ColumnElement[bool] = literal_column("attempts.ending = 'expire'")
_RUNS_ANOTHER = select(
    exists().where(_RUNNING, jobs.c.worker == bindparam("the_worker"), jobs.c.id != bindparam("the_job"))
)
_LOST_ANOTHER = select(
    exists().where(_EXPIRED, attempts.c.worker == bindparam("the_worker"), attempts.c.job_id != bindparam("the_job"))
)


def finish(
    connection: Connection,
    job_id: str,
    epoch: int,
    response: Sequence[AgentMessage],
    usage: Usage | None,
    outcome: Outcome = "ok",
) -> Recorded:
    """The attempt answered: save the answer. Raises TransitionRefused if the attempt has lost its job."""
    job, now = hold(connection, job_id, epoch, "running")
    message_ids = save_answer(connection, job, response, COMPLETE, now)
    fields = {
        "outcome": outcome,
        "response": [message.to_json() for message in response],
        "usage": usage,
        "message_ids": message_ids,
    }
    return move_job(connection, job, now, Move("finish", "final", fields, "finished", outcome=outcome), NOTHING_SHOWN)


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
    job, now = hold(connection, job_id, epoch, "running")
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
    job, now = hold(connection, job_id, epoch, "running")
    if job.cancel_reason is not None:
        return _cancel(connection, job, now, job.cancel_reason, response, attempt)
    if job.wrote:
        error = JobError(code="cut_off", message="the worker was shut down while it answered", retryable=True)
        return _fail(connection, job, now, error, "fail", 0, attempt)
    if job.releases >= MAX_RELEASES:
        error = JobError(code="released_too_often", message="the workers kept shutting down under it", retryable=True)
        return _fail(connection, job, now, error, "fail", 0, attempt)
    move = Move("release", "requeued", {"reason": reason}, "queued", due_at=now, releases=job.releases + 1)
    return move_job(connection, job, now, move, attempt)


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
    job, now = hold(connection, job_id, epoch, "queued", "running")
    return _cancel(connection, job, now, reason, response, attempt)


def expire(connection: Connection, job_id: str, epoch: int, as_of_us: int | None = None) -> Recorded:
    """Nobody renewed the attempt's lease: its worker is lost. Any process may find that out.

    The lease must have been past at `as_of_us`, the reading of the clock by which the caller judged it, so that a step
    of the clock since then expires nothing. Raises TransitionRefused if it was not, or was renewed after all.
    """
    job, now = hold(connection, job_id, epoch, "running", may_isolate=True)
    if job.lease_until >= (now if as_of_us is None else min(now, as_of_us)):
        raise TransitionRefused(f"job {job_id}: its lease was renewed")
    if job.cancel_reason is not None:
        return _cancel(connection, job, now, job.cancel_reason, (), NOTHING_SHOWN)
    alone = is_alone(job.lane)
    while_ = "it answered this job alone, and two workers before it" if alone else "it answered"
    error = JobError(code="worker_lost", message=f"the worker died or lost touch while {while_}", retryable=True)
    lost = job.lost_in_company + (not alone and _had_company(connection, job))
    return _fail(connection, job, now, error, "expire", 0, AttemptRecord(error_class="WorkerLost"), lost)


def lapse(connection: Connection, job_id: str, epoch: int) -> Recorded:
    """The deadline passed while the job was queued: it is dead-lettered. Raises TransitionRefused."""
    job, now = hold(connection, job_id, epoch, "queued")
    if job.deadline_at > now:
        raise TransitionRefused(f"job {job_id}: its deadline has not passed")
    error = JobError(code="deadline", message="the deadline passed while the job was waiting", retryable=False)
    return bury(connection, job, now, error, "lapse", NOTHING_SHOWN)


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


def _had_company(connection: Connection, job: Any) -> bool:
    """Whether its worker ran other jobs as well: then any of them may be the one that killed it."""
    others = {"the_worker": job.worker, "the_job": job.id}
    return any(connection.execute(query, others).scalar_one() for query in (_RUNS_ANOTHER, _LOST_ANOTHER))


def _fail(
    connection: Connection,
    job: Any,
    now: int,
    error: JobError,
    kind: str,
    delay_us: int,
    attempt: AttemptRecord,
    lost: int | None = None,
) -> Recorded:
    failures = job.failures + (0 if kind == "defer" else 1)
    due_at = now + delay_us
    if job.wrote and error.retryable:
        said = f"{error.message}; it was not tried again, because its tools have written and its agent cannot continue"
        error = error.model_copy(update={"message": said, "retryable": False})
    retried = {"error": error.model_dump(), "retry_at": rfc3339(due_at)}
    if error.retryable and due_at < job.deadline_at:
        if failures < MAX_FAILURES or kind == "defer":
            move = Move(kind, "retrying", retried, "queued", due_at=due_at, failures=failures, lost=lost, error=error)
            return move_job(connection, job, now, move, attempt)
        if kind == "expire" and lost == failures == MAX_FAILURES:
            # Perhaps a neighbour killed its workers: one more attempt, in a process that runs nothing else.
            lane = alone_lane(job.queue)
            move = Move(
                kind, "retrying", retried, "queued", due_at=due_at, failures=failures, lost=lost, lane=lane, error=error
            )
            return move_job(connection, job, now, move, attempt)
    return bury(connection, job, now, error, kind, attempt, failures, lost)


def _cancel(
    connection: Connection,
    job: Any,
    now: int,
    reason: str,
    response: Sequence[AgentMessage],
    attempt: AttemptRecord,
) -> Recorded:
    if not response and job.attempt and job.rank % 2 == 0:
        # Nobody runs it, so nobody else says what its attempts have kept; its message has its place since it has run.
        response = read_progress(connection, job.id).closed()
    message_ids = save_answer(connection, job, response, CANCELLED, now)
    fields = {"reason": reason, "response": [m.to_json() for m in response], "message_ids": message_ids}
    return move_job(connection, job, now, Move("cancel", "cancelled", fields, "cancelled"), attempt)
