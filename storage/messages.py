"""The saved turns of a session: a tree, of which one branch is being talked on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import Connection, bindparam, insert, literal, select, update

from schemas.agent_message import ChatMessage, ToolCall
from schemas.ids import new_id
from storage.tables import messages

COMPLETE = "complete"
CANCELLED = "cancelled"

#: A conversation longer than this is a loop in the data, not a conversation.
_MAX_DEPTH = 100_000

_INSERT = insert(messages)


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message about to be stored."""

    id: str
    role: str
    content: str
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    job_id: str | None = None
    placed: bool = True
    status: str = COMPLETE

    @classmethod
    def of(cls, message: ChatMessage, *, id: str | None = None, **fields: Any) -> Self:  # noqa: A002 - the column's name
        return cls(
            id=id or new_id(),
            role=message.role,
            content=message.content,
            tool_calls=message.tool_calls,
            tool_call_id=message.tool_call_id,
            **fields,
        )


def insert_messages(
    connection: Connection,
    new: Sequence[NewMessage],
    tenant: str,
    session_id: str,
    *,
    parent_id: str | None,
    now: int,
) -> str | None:
    """Store messages, each one the child of the one before it; returns the last one's id, or `parent_id` if none."""
    rows = []
    for message in new:
        rows.append(
            {
                "id": message.id,
                "tenant": tenant,
                "session_id": session_id,
                "parent_id": parent_id,
                "placed": message.placed,
                "role": message.role,
                "content": message.content,
                "tool_calls": message.tool_calls,
                "tool_call_id": message.tool_call_id,
                "status": message.status,
                "job_id": message.job_id,
                "created_at": now,
            }
        )
        parent_id = message.id
    if rows:
        connection.execute(_INSERT, rows)
    return parent_id


PLACE_MESSAGE = (
    update(messages)
    .where(messages.c.id == bindparam("message"), messages.c.placed.is_(False))
    .values(parent_id=bindparam("parent"), placed=True)
)

_SHAPE = (
    messages.c.id,
    messages.c.parent_id,
    messages.c.role,
    messages.c.content,
    messages.c.tool_calls,
    messages.c.tool_call_id,
)


def _branch() -> Any:
    start = (
        select(*_SHAPE, literal(0).label("depth"))
        .where(
            messages.c.id == bindparam("leaf"),
            messages.c.session_id == bindparam("session"),
            messages.c.tenant == bindparam("owner"),
        )
        .cte("branch", recursive=True)
    )
    step = select(*_SHAPE, start.c.depth + 1).where(messages.c.id == start.c.parent_id, start.c.depth < _MAX_DEPTH)
    branch = start.union_all(step)
    return select(branch).order_by(branch.c.depth.desc())


_BRANCH = _branch()


def read_branch(connection: Connection, tenant: str, session_id: str, leaf: str | None) -> list[ChatMessage]:
    """The messages from the root down to `leaf`, included; empty if there is no such message."""
    if leaf is None:
        return []
    rows = connection.execute(_BRANCH, {"leaf": leaf, "session": session_id, "owner": tenant})
    return [
        ChatMessage.model_construct(
            role=row.role, content=row.content, tool_calls=row.tool_calls, tool_call_id=row.tool_call_id
        )
        for row in rows
    ]


_ONE = select(messages.c.content, messages.c.parent_id).where(messages.c.id == bindparam("message"))


def read_question(connection: Connection, message_id: str) -> tuple[str, str | None]:
    """The text of a user message and the id of its parent."""
    row = connection.execute(_ONE, {"message": message_id}).one()
    return row.content, row.parent_id
