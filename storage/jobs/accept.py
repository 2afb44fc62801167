"""Accept: the transition that makes a job. A job is accepted once this transaction is committed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, exists, select, update
from sqlalchemy.dialects.postgresql import insert

from schemas.agent_message import ChatMessage
from schemas.chat_job import ChatJob, conversation_of
from schemas.errors import InvalidRequest, NotFound, SessionBusy
from schemas.frameworks import NO_FRAMEWORK
from schemas.ids import new_id
from storage.clock import now_us, to_us
from storage.database import RunAgain
from storage.jobs.interrupt import NOTHING_STOPPED, Interrupted, interrupt, lock_lanes_of
from storage.jobs.statements import UNFINISHED, Recorded, read_clock, record, work_is_due
from storage.locks import LaneKey
from storage.messages import NewMessage, insert_messages
from storage.sessions import NewSession, insert_session
from storage.tables import job_bodies, jobs, messages, sessions

#: What may change between two sendings of the same request: they do not make it another one.
_NOT_ASKED = frozenset({"version", "job_id", "tenant"})

_KNOWN_JOB = (
    select(jobs.c.tenant, jobs.c.session_id, jobs.c.epoch, job_bodies.c.digest)
    .join(job_bodies, job_bodies.c.job_id == jobs.c.id)
    .where(jobs.c.id == bindparam("job_id"))
)
#: SQLAlchemy keeps the row count of updates only, unless told to.
_INSERT_JOB = insert(jobs).on_conflict_do_nothing().execution_options(preserve_rowcount=True)
_INSERT_BODY = insert(job_bodies)
#: Taking a place locks the session's row, so places are given in order of acceptance.
_TAKE_PLACE = (
    update(sessions)
    .where(sessions.c.id == bindparam("session"), sessions.c.tenant == bindparam("owner"))
    .values(next_seq=sessions.c.next_seq + 1, updated_at=now_us())
    .returning(
        (sessions.c.next_seq - 1).label("place"), sessions.c.agent_framework, sessions.c.model, sessions.c.user_id
    )
)
_ANSWERABLE = select(messages.c.id).where(
    messages.c.id == bindparam("message"),
    messages.c.session_id == bindparam("session"),
    messages.c.tenant == bindparam("owner"),
    messages.c.role == "user",
)
BUSY = select(exists().where(UNFINISHED, jobs.c.session_id == bindparam("session")))


@dataclass(frozen=True, slots=True)
class Accepted:
    """The outcome of accepting: the job, and whether this call made it."""

    job_id: str
    session_id: str
    queue: str
    created: bool
    #: The `queued` event to append; None if the job was there already.
    recorded: Recorded | None
    #: What it stopped in its session.
    interrupted: Interrupted = NOTHING_STOPPED


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the job stands: its session, its turn in it, and the message it answers."""

    session_id: str
    seq: int
    head: bool
    user_message_id: str
    framework: str
    model: str | None
    user_id: str | None
    interrupted: Interrupted = NOTHING_STOPPED


def accept(connection: Connection, job: ChatJob, default_framework: str) -> Accepted:
    """Accept a job, or find the one that was accepted under its id with the same body.

    Raises InvalidRequest if the id is taken by another body or tenant, or nobody answers the session; NotFound if its
    session or the message it replies to is missing or another tenant's; SessionBusy if it is not to wait for one.
    """
    digest = body_digest(job)
    if (known := _known(connection, job, digest)) is not None:
        return known
    lanes = frozenset({(job.queue, job.tenant)})
    if job.session_id is not None and job.if_busy == "interrupt":
        lanes = lock_lanes_of(connection, job.session_id, (job.queue, job.tenant))
    now = read_clock(connection)
    work_is_due(connection, job.queue, job.tenant, now)
    if job.message is None and job.messages is not None:
        place = _open_session(connection, job, default_framework, now, hidden=True)
    elif job.session_id is None:
        place = _open_session(connection, job, default_framework, now, hidden=False)
    else:
        place = _join_session(connection, job, job.session_id, lanes, now)
    if (job.agent_framework or place.framework) == NO_FRAMEWORK:
        raise InvalidRequest("nobody answers this session: its agent_framework is none", field="agent_framework")
    if not connection.execute(_INSERT_JOB, _row(job, place, now)).rowcount:
        # Lost a race against the same id. What this call has stored goes, and the next one finds the winner's job.
        raise RunAgain
    connection.execute(
        _INSERT_BODY, {"job_id": job.job_id, "tenant": job.tenant, "body": job.to_json(), "digest": digest}
    )
    recorded = record(
        connection,
        tenant=job.tenant,
        job_id=job.job_id,
        epoch=0,
        kind="accept",
        at=now,
        event_kind="queued",
        queue=job.queue,
        fields={"queue": job.queue, "session_id": place.session_id},
        wakes=job.queue if place.head else None,
    )
    return Accepted(job.job_id, place.session_id, job.queue, True, recorded, place.interrupted)


def body_digest(job: ChatJob) -> str:
    """SHA-256 of what the job asks for: the same for every sending of one request."""
    asked = {name: value for name, value in job.to_json().items() if name not in _NOT_ASKED}
    return hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _known(connection: Connection, job: ChatJob, digest: str) -> Accepted | None:
    row = connection.execute(_KNOWN_JOB, {"job_id": job.job_id}).one_or_none()
    if row is None:
        return None
    if row.tenant != job.tenant:
        raise InvalidRequest("this job_id is taken", field="job_id")
    if row.digest != digest:
        raise InvalidRequest("this job_id was used for a different request", field="job_id")
    return Accepted(job.job_id, row.session_id, job.queue, False, None)


def _open_session(connection: Connection, job: ChatJob, default_framework: str, now: int, *, hidden: bool) -> _Place:
    """Open a session with the job's settings; a stateless job's is hidden and holds its whole history."""
    session = NewSession(
        tenant=job.tenant,
        user_id=job.user_id,
        hidden=hidden,
        agent_framework=job.agent_framework or default_framework,
        model=job.model,
        system=job.system,
        language=job.language,
        tools=job.tools,
        parameters=job.parameters.to_json(),
        next_seq=2,
    )
    history = conversation_of(job.messages) if job.messages else []
    question = history.pop() if history else ChatMessage(role="user", content=job.message or "")
    leaf = insert_messages(
        connection, [NewMessage.of(message) for message in history], job.tenant, session.id, parent_id=None, now=now
    )
    insert_session(connection, session, active_leaf=leaf, now=now)
    user_message_id = _store_question(connection, job, session.id, question, now)
    return _Place(session.id, 1, True, user_message_id, session.agent_framework, session.model, session.user_id)


def _join_session(connection: Connection, job: ChatJob, session_id: str, lanes: frozenset[LaneKey], now: int) -> _Place:
    owner = {"session": session_id, "owner": job.tenant}
    row = connection.execute(_TAKE_PLACE, owner).one_or_none()
    if row is None:
        raise NotFound("there is no such session", field="session_id")
    interrupted = interrupt(connection, session_id, lanes) if job.if_busy == "interrupt" else NOTHING_STOPPED
    busy = bool(connection.execute(BUSY, {"session": session_id}).scalar_one())
    if busy and job.if_busy == "reject":
        raise SessionBusy("the session is still answering: wait for it, or send if_busy enqueue or interrupt")
    if job.reply_to is not None:
        if connection.execute(_ANSWERABLE, {**owner, "message": job.reply_to}).one_or_none() is None:
            raise NotFound("there is no such user message in this session", field="reply_to")
        user_message_id = job.reply_to
    else:
        question = ChatMessage(role="user", content=job.message or "")
        user_message_id = _store_question(connection, job, session_id, question, now)
    return _Place(
        session_id, row.place, not busy, user_message_id, row.agent_framework, row.model, row.user_id, interrupted
    )


def _store_question(connection: Connection, job: ChatJob, session_id: str, question: ChatMessage, now: int) -> str:
    """Store the user's text once; the first claim gives it its parent."""
    message = NewMessage.of(question, id=new_id(), job_id=job.job_id, placed=False)
    insert_messages(connection, [message], job.tenant, session_id, parent_id=None, now=now)
    return message.id


def _row(job: ChatJob, place: _Place, now: int) -> dict[str, Any]:
    return {
        "id": job.job_id,
        "tenant": job.tenant,
        "queue": job.queue,
        "lane": job.queue,
        "session_id": place.session_id,
        "session_seq": place.seq,
        "head": place.head,
        "status": "queued",
        "epoch": 0,
        "rank": first_rank(job.priority),
        "due_at": now,
        "deadline_at": now + to_us(job.deadline_s),
        "user_message_id": place.user_message_id,
        "regenerates": job.reply_to is not None,
        "agent_framework": job.agent_framework or place.framework,
        "model": job.model or place.model,
        "user_id": job.user_id or place.user_id,
        "created_at": now,
    }


def first_rank(priority: int) -> int:
    """The rank of a job that has not run: ahead of its priority's retries. Lower runs first."""
    return -(2 * priority + 1)
