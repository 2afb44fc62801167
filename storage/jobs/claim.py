"""Claim: the next runnable job of a queue becomes an attempt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    bindparam,
    exists,
    func,
    insert,
    select,
    update,
)

from schemas.chat_job import ChatJob
from storage.breakers import Held, held_until, is_probe
from storage.clock import now_us, to_us
from storage.database import CommitAndRunAgain, RunAgain
from storage.jobs.hold_back import hold_back, put_off
from storage.jobs.statements import RUNNABLE, Recorded, record
from storage.lanes import queue_of
from storage.messages import PLACE_MESSAGE, read_question
from storage.queues import not_paused
from storage.tables import attempts, job_bodies, jobs, lanes, sessions

#: How long a probe may be silent, unless the caller says otherwise, before another one is let through.
PROBE_US = to_us(150)
#: A job that only a newer version can read is left to that version's workers, and must not hold up the others.
_UNREADABLE_US = to_us(30)


def _next_lane(columns: FromClause, *wanted: ColumnElement[Any]) -> Select[Any]:
    """The lane whose turn it is: due, with room, the fewest running, the least recently served."""
    of = columns.c
    due = (of.lane == bindparam("lane")) & of.next_due.is_not(None) & (of.next_due <= now_us())
    open_ = not_paused(bindparam("queue", type_=of.lane.type))
    return (
        select(*wanted).where(due, of.running < of.running_limit, open_).order_by(of.running, of.last_served).limit(1)
    )


_BEST = lanes.alias("best")
_LANE = _next_lane(lanes, lanes.c.tenant, now_us().label("now"))
_FREE_LANE = _LANE.with_for_update(skip_locked=True)
#: Locks one row by its key and no other: going on from a row that changed while it waited would lock two.
_BEST_LANE = _LANE.where(lanes.c.tenant == _next_lane(_BEST, _BEST.c.tenant).scalar_subquery()).with_for_update()

_IN_LANE = (jobs.c.lane == bindparam("lane")) & (jobs.c.tenant == bindparam("tenant"))
_NEXT_JOB = (
    select(jobs)
    .where(RUNNABLE, _IN_LANE, jobs.c.due_at <= bindparam("now"), jobs.c.deadline_at > bindparam("now"))
    .order_by(jobs.c.rank, jobs.c.due_at, jobs.c.id)
    .limit(1)
)
_SOME_JOB = select(
    exists().where(RUNNABLE, jobs.c.lane == bindparam("lane"), jobs.c.due_at <= now_us(), jobs.c.deadline_at > now_us())
)
#: Jobs past their deadline are the reconciler's: they must not keep the hint in the past.
_NEXT_DUE = select(func.min(jobs.c.due_at)).where(RUNNABLE, _IN_LANE, jobs.c.deadline_at > bindparam("now"))
_SET_HINT = (
    update(lanes)
    .where(lanes.c.lane == bindparam("the_lane"), lanes.c.tenant == bindparam("the_tenant"))
    .values(next_due=bindparam("due"))
)
_SERVE = (
    update(lanes)
    .where(lanes.c.lane == bindparam("the_lane"), lanes.c.tenant == bindparam("the_tenant"))
    .values(running=lanes.c.running + 1, last_served=bindparam("now"))
)
_START = (
    update(jobs)
    .where(jobs.c.id == bindparam("the_job"), jobs.c.epoch == bindparam("old_epoch"), jobs.c.status == "queued")
    .values(
        status="running",
        epoch=jobs.c.epoch + 1,
        attempt=jobs.c.attempt + 1,
        rank=bindparam("new_rank"),
        worker=bindparam("by"),
        lease_until=bindparam("lease"),
        held_by=None,
        started_at=func.coalesce(jobs.c.started_at, bindparam("now")),
    )
)
_INSERT_ATTEMPT = insert(attempts)
_LEAF = select(sessions.c.active_leaf).where(sessions.c.id == bindparam("session"))
_LOAD = (
    select(job_bodies.c.body, sessions)
    .join(jobs, jobs.c.id == job_bodies.c.job_id)
    .join(sessions, sessions.c.id == jobs.c.session_id)
    .where(job_bodies.c.job_id == bindparam("job"))
)


@dataclass(frozen=True, slots=True)
class Claim:
    """An attempt as claimed: all that is needed to answer, but the history."""

    job_id: str
    tenant: str
    queue: str
    session_id: str
    epoch: int
    attempt: int
    #: Failures before this attempt.
    failures: int
    deadline_at: int
    #: When it was accepted, or redriven, in microseconds.
    accepted_at: int
    #: The database's time of the claim, in microseconds.
    claimed_at: int
    #: When the job became due, in microseconds: what it waited for a worker is the difference.
    due_at: int
    user_message_id: str
    user_message: str
    #: Where the history ends: the parent of the message to answer.
    history_leaf: str | None
    job: ChatJob
    agent_framework: str
    #: The model to ask: the job's, or its `fallback_model` once it has failed. None is the worker's default.
    model: str | None
    user_id: str | None
    #: The stored session: system, language, tools, parameters.
    session: dict[str, Any]
    #: The `started` event.
    recorded: Recorded
    #: It tries whether a provider answers again that has failed job after job.
    probes: bool = False


def has_work(connection: Connection, lane: str) -> bool:
    """Whether a claim may find something: a look without locks, for rings that come in numbers."""
    return connection.execute(_LANE, {"lane": lane, "queue": queue_of(lane)}).one_or_none() is not None


def has_job(connection: Connection, lane: str) -> bool:
    """Whether a claim would find something, for whoever pays dearly for looking in vain.

    `has_work` says yes until a claim has found nothing.
    """
    return has_work(connection, lane) and bool(connection.execute(_SOME_JOB, {"lane": lane}).scalar_one())


def claim(
    connection: Connection,
    lane: str,
    worker: str,
    lease_us: int,
    breaker_of: Held | None = None,
    probe_us: int = PROBE_US,
) -> Claim | None:
    """Claim the next runnable job: of the due lane with the fewest running, the least recently served.

    `breaker_of` names the breaker that this process believes to be open for a framework and model; a job that meets it
    is put off to its probe, and the next one is looked for.
    Returns None if nothing is runnable. Raises CommitAndRunAgain after a lane that had nothing after all: then no
    transaction ever holds two.
    """
    of_lane = {"lane": lane, "queue": queue_of(lane)}
    chosen = connection.execute(_FREE_LANE, of_lane).one_or_none()
    if chosen is None:
        if connection.dialect.name == "sqlite" or not has_work(connection, lane):
            return None
        # Every due lane is held, perhaps by an accept that is about to commit: wait for one.
        chosen = connection.execute(_BEST_LANE, of_lane).one_or_none()
    if chosen is None:
        raise CommitAndRunAgain  # by now it is full, or has nothing due
    key = {"lane": lane, "tenant": chosen.tenant, "now": chosen.now}
    row = connection.execute(_NEXT_JOB, key).one_or_none()
    if row is None:
        due = connection.execute(_NEXT_DUE, key).scalar_one_or_none()
        connection.execute(_SET_HINT, {"the_lane": lane, "the_tenant": chosen.tenant, "due": due})
        raise CommitAndRunAgain
    stored = connection.execute(_LOAD, {"job": row.id}).mappings().one()
    try:
        job = ChatJob.from_stored(stored["body"])
    except ValidationError:
        put_off(connection, row, chosen.now + _UNREADABLE_US)
        raise CommitAndRunAgain from None
    model = job.fallback_model if row.failures and job.fallback_model else row.model
    breaker = breaker_of(row.agent_framework, model) if breaker_of is not None else None
    if breaker is not None and (until := held_until(connection, breaker, row.id, chosen.now, probe_us)) is not None:
        hold_back(connection, row, breaker, chosen.now, until)
        raise CommitAndRunAgain
    claimed = _start(connection, row, job, model, dict(stored), worker, chosen.now, lease_us)
    return claimed if breaker is None else replace(claimed, probes=is_probe(connection, breaker, row.id))


def _start(
    connection: Connection,
    row: Any,
    job: ChatJob,
    model: str | None,
    session: dict[str, Any],
    worker: str,
    now: int,
    lease_us: int,
) -> Claim:
    # The lane's lock keeps every other claim out, and the epoch guards against the rest.
    started = connection.execute(
        _START,
        {
            "the_job": row.id,
            "old_epoch": row.epoch,
            # A job that has run once loses the bonus of a fresh one: odd ranks are the fresh ones.
            "new_rank": row.rank + 1 if row.rank % 2 else row.rank,
            "by": worker,
            "lease": now + lease_us,
            "now": now,
        },
    )
    if started.rowcount != 1:
        raise RunAgain  # the job moved between the two statements: look anew
    epoch, attempt = row.epoch + 1, row.attempt + 1
    connection.execute(_SERVE, {"the_lane": row.lane, "the_tenant": row.tenant, "now": now})
    if row.rank % 2:
        # The first run since it was accepted or redriven. A message answered again has its place already, unless its
        # own job ended before it ever ran.
        leaf = connection.execute(_LEAF, {"session": row.session_id}).scalar_one()
        connection.execute(PLACE_MESSAGE, {"message": row.user_message_id, "parent": leaf})
    connection.execute(
        _INSERT_ATTEMPT,
        {
            "job_id": row.id,
            "attempt": attempt,
            "tenant": row.tenant,
            "epoch": epoch,
            "worker": worker,
            "model": model,
            "started_at": now,
        },
    )
    recorded = record(
        connection,
        tenant=row.tenant,
        job_id=row.id,
        epoch=epoch,
        kind="claim",
        at=now,
        event_kind="started",
        queue=row.queue,
        fields={"attempt": attempt, "worker": worker},
    )
    text, parent = read_question(connection, row.user_message_id)
    return Claim(
        job_id=row.id,
        tenant=row.tenant,
        queue=row.queue,
        session_id=row.session_id,
        epoch=epoch,
        attempt=attempt,
        failures=row.failures,
        deadline_at=row.deadline_at,
        accepted_at=row.deadline_at - to_us(job.deadline_s),
        claimed_at=now,
        due_at=row.due_at,
        user_message_id=row.user_message_id,
        user_message=text,
        history_leaf=parent,
        job=job,
        agent_framework=row.agent_framework,
        model=model,
        user_id=row.user_id,
        session=session,
        recorded=recorded,
    )
