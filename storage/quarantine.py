"""Queue messages nobody could make sense of: their bytes, and why."""

from __future__ import annotations

from sqlalchemy import Connection, insert

from schemas.border_text import clean_text
from schemas.chat_job import DEFAULT_TENANT
from schemas.ids import new_id
from storage.jobs.statements import read_clock
from storage.tables import quarantine

_REASON_MAX = 500
_INSERT = insert(quarantine)


def keep(connection: Connection, queue: str, reason: str, payload: bytes) -> str:
    """Keep a message for inspection; returns its id in the quarantine."""
    quarantine_id = new_id()
    connection.execute(
        _INSERT,
        {
            "id": quarantine_id,
            "tenant": DEFAULT_TENANT,
            "queue": queue,
            "reason": clean_text(reason)[:_REASON_MAX],
            "payload": payload,
            "created_at": read_clock(connection),
        },
    )
    return quarantine_id
