"""Pausing a queue: nothing of it is claimed until it is resumed. What runs goes on, and deadlines go on passing."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, exists, select
from sqlalchemy.dialects.postgresql import insert

from schemas.border_text import clean_text
from storage.jobs.statements import read_clock
from storage.tables import paused_queues

_REASON_MAX = 200
_PAUSE = insert(paused_queues).on_conflict_do_nothing()
_RESUME = delete(paused_queues).where(paused_queues.c.queue == bindparam("the_queue"))
_PAUSED = select(paused_queues).order_by(paused_queues.c.queue)


def not_paused(queue: ColumnElement[str]) -> ColumnElement[bool]:
    """The condition that a queue may be claimed from."""
    return ~exists().where(paused_queues.c.queue == queue)


def pause(connection: Connection, queue: str, reason: str = "") -> None:
    """Let nothing of the queue start any more; a queue that is paused already keeps its reason."""
    connection.execute(
        _PAUSE, {"queue": queue, "reason": clean_text(reason)[:_REASON_MAX], "paused_at": read_clock(connection)}
    )


def resume(connection: Connection, queue: str) -> bool:
    """Let the queue's jobs start again; returns whether it was paused. Its waiting jobs must be rung for."""
    return bool(connection.execute(_RESUME, {"the_queue": queue}).rowcount)


def paused(connection: Connection) -> list[dict[str, Any]]:
    """The queues that are paused: `queue`, `reason`, `paused_at`."""
    return [dict(row) for row in connection.execute(_PAUSED).mappings()]
