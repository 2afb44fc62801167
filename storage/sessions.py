"""Sessions: conversations with their settings, and the place each job gets in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, delete, exists, insert, select, update

from schemas.agent_message import ChatMessage
from schemas.chat_job import DEFAULT_TENANT
from schemas.errors import Conflict, InvalidRequest, NotFound
from schemas.ids import new_id
from storage.clock import now_us
from storage.jobs.statements import UNFINISHED, read_clock
from storage.locks import lock_session
from storage.messages import NewMessage, insert_messages, read_branch
from storage.tables import (
    attempts,
    dead_letters,
    job_bodies,
    jobs,
    messages,
    outbox,
    rounds,
    sessions,
    tool_calls,
    transitions,
)

_INSERT = insert(sessions)
_OWN = (sessions.c.id == bindparam("session")) & (sessions.c.tenant == bindparam("owner"))
_GET = select(sessions).where(_OWN)
_MESSAGES = (
    select(messages)
    .where(messages.c.session_id == bindparam("session"), messages.c.tenant == bindparam("owner"))
    # By the database's clock: a worker's own may be hours late. What one transaction stored has one time.
    .order_by(messages.c.created_at, messages.c.id)
)
_BUSY = select(exists().where(UNFINISHED, jobs.c.session_id == bindparam("session")))
_OWN_MESSAGE = select(messages.c.id).where(
    messages.c.id == bindparam("message"),
    messages.c.session_id == bindparam("session"),
    messages.c.placed.is_(True),
)
#: Tables whose rows belong to a job and go with it.
_OF_JOBS = (job_bodies, transitions, attempts, rounds, tool_calls, dead_letters, outbox)


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session about to be stored."""

    agent_framework: str
    tenant: str = DEFAULT_TENANT
    id: str = field(default_factory=new_id)
    user_id: str | None = None
    hidden: bool = False
    model: str | None = None
    system: str | None = None
    language: str | None = None
    tools: list[str] | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    next_seq: int = 1


def insert_session(connection: Connection, session: NewSession, *, active_leaf: str | None, now: int) -> None:
    """Store a new session whose conversation stands at `active_leaf`."""
    connection.execute(
        _INSERT,
        {
            "id": session.id,
            "tenant": session.tenant,
            "user_id": session.user_id,
            "hidden": session.hidden,
            "agent_framework": session.agent_framework,
            "model": session.model,
            "system": session.system,
            "language": session.language,
            "tools": session.tools,
            "parameters": session.parameters,
            "metadata": session.metadata,
            "active_leaf": active_leaf,
            "next_seq": session.next_seq,
            "created_at": now,
            "updated_at": now,
        },
    )


def create_session(connection: Connection, session: NewSession, history: Sequence[ChatMessage]) -> dict[str, Any]:
    """Store a new session with the conversation held so far, oldest first; returns its row."""
    now = read_clock(connection)
    leaf = insert_messages(
        connection,
        [NewMessage.of(message) for message in history],
        session.tenant,
        session.id,
        parent_id=None,
        now=now,
    )
    insert_session(connection, session, active_leaf=leaf, now=now)
    return get_session(connection, session.tenant, session.id)


def get_session(connection: Connection, tenant: str, session_id: str) -> dict[str, Any]:
    """The session's row; raises NotFound if it is missing or another tenant's."""
    row = connection.execute(_GET, {"session": session_id, "owner": tenant}).mappings().one_or_none()
    if row is None:
        raise NotFound("there is no such session")
    return dict(row)


def get_messages(connection: Connection, tenant: str, session_id: str) -> list[dict[str, Any]]:
    """All messages of the session, every branch, in the order they were made."""
    rows = connection.execute(_MESSAGES, {"session": session_id, "owner": tenant}).mappings()
    return [dict(row) for row in rows]


def list_sessions(
    connection: Connection, tenant: str, *, limit: int, before: str | None = None
) -> list[dict[str, Any]]:
    """The tenant's sessions, newest first; `before` is the id the previous page ended with."""
    query = select(sessions).where(sessions.c.tenant == tenant, sessions.c.hidden.is_(False))
    if before is not None:
        query = query.where(sessions.c.id < before)
    rows = connection.execute(query.order_by(sessions.c.id.desc()).limit(limit)).mappings()
    return [dict(row) for row in rows]


def change_session(connection: Connection, tenant: str, session_id: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Set the columns in `changes`; returns the row as it is now.

    Raises NotFound for the session, and for an `active_leaf` that is not a placed message of it; InvalidRequest for one
    that a tool call without its result leads to.
    """
    lock_session(connection, session_id)
    get_session(connection, tenant, session_id)
    leaf = changes.get("active_leaf")
    if leaf is not None:
        place = {"message": leaf, "session": session_id}
        if connection.execute(_OWN_MESSAGE, place).one_or_none() is None:
            raise NotFound("there is no such message in this session", field="active_leaf")
        if _open_calls(read_branch(connection, tenant, session_id, leaf)):
            raise InvalidRequest("the branch would end in a tool call without its result", field="active_leaf")
    connection.execute(update(sessions).where(sessions.c.id == session_id).values(**changes, updated_at=now_us()))
    return get_session(connection, tenant, session_id)


def _open_calls(branch: Sequence[ChatMessage]) -> set[str]:
    """The tool calls at the end of a branch whose results are not on it."""
    answered: set[str | None] = set()
    for message in reversed(branch):
        if message.role != "tool":
            return {call["id"] for call in message.tool_calls or () if call["id"] not in answered}
        answered.add(message.tool_call_id)
    return set()


def delete_session(connection: Connection, tenant: str, session_id: str) -> list[str]:
    """Remove the session with its messages and its ended jobs; returns these jobs' ids.

    Raises NotFound, or Conflict while a job of it is unfinished.
    """
    lock_session(connection, session_id)
    get_session(connection, tenant, session_id)
    if connection.execute(_BUSY, {"session": session_id}).scalar_one():
        raise Conflict("the session has an unfinished job: cancel it first, or wait for it")
    job_ids = list(connection.execute(select(jobs.c.id).where(jobs.c.session_id == session_id)).scalars())
    of_session = select(jobs.c.id).where(jobs.c.session_id == session_id)
    for table in _OF_JOBS:
        connection.execute(delete(table).where(table.c.job_id.in_(of_session)))
    connection.execute(delete(jobs).where(jobs.c.session_id == session_id))
    connection.execute(delete(messages).where(messages.c.session_id == session_id))
    connection.execute(delete(sessions).where(sessions.c.id == session_id))
    return job_ids
