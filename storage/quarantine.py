"""Queue messages nobody could make sense of: their bytes, and why."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from schemas.border_text import clean_text
from schemas.chat_job import DEFAULT_TENANT
from schemas.errors import Conflict, NotFound
from schemas.ids import new_id
from storage.clock import now_us
from storage.jobs.statements import read_clock
from storage.tables import quarantine

_REASON_MAX = 500
REQUEUED = "requeued"
DROPPED = "dropped"

_INSERT = insert(quarantine)
_OWN = (quarantine.c.id == bindparam("entry")) & (quarantine.c.tenant == bindparam("owner"))
_GET = select(quarantine, func.length(quarantine.c.payload).label("size")).where(_OWN)
#: Without the bytes: there may be megabytes of them.
_LIST = select(
    *(column for column in quarantine.c if column.name != "payload"), func.length(quarantine.c.payload).label("size")
)
_RESOLVE = (
    update(quarantine)
    .where(_OWN, quarantine.c.resolution.is_(None))
    .values(resolution=bindparam("how"), resolved_at=now_us())
)


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


def list_entries(
    connection: Connection,
    tenant: str,
    *,
    limit: int,
    before: str | None = None,
    state: str = "lying",
    queue: str | None = None,
) -> list[dict[str, Any]]:
    """The tenant's entries, newest first, each with its `size` instead of its `payload`.

    `state` is `lying` (nobody has decided yet), `requeued` or `dropped`; `before` is the last id of the page before.
    """
    query = _LIST.where(quarantine.c.tenant == tenant)
    query = query.where(quarantine.c.resolution.is_(None) if state == "lying" else quarantine.c.resolution == state)
    if before is not None:
        query = query.where(quarantine.c.id < before)
    if queue is not None:
        query = query.where(quarantine.c.queue == queue)
    return [dict(row) for row in connection.execute(query.order_by(quarantine.c.id.desc()).limit(limit)).mappings()]


def get_entry(connection: Connection, tenant: str, entry_id: str) -> dict[str, Any]:
    """The entry with its `payload` and `size`; raises NotFound if it is missing or another tenant's."""
    row = connection.execute(_GET, {"entry": entry_id, "owner": tenant}).mappings().one_or_none()
    if row is None:
        raise NotFound("there is no such entry in the quarantine")
    return dict(row)


def get_lying(connection: Connection, tenant: str, entry_id: str) -> dict[str, Any]:
    """The same for an entry nobody has decided about; raises Conflict if somebody has."""
    entry = get_entry(connection, tenant, entry_id)
    if entry["resolution"] is not None:
        raise Conflict(f"this entry was {entry['resolution']} already")
    return entry


def resolve(connection: Connection, tenant: str, entry_id: str, how: str) -> dict[str, Any]:
    """Say what was decided, by compare-and-set; returns the entry. Its bytes stay until retention removes them.

    Raises NotFound, and Conflict if somebody has decided already.
    """
    decided = connection.execute(_RESOLVE, {"entry": entry_id, "owner": tenant, "how": how}).rowcount
    entry = get_entry(connection, tenant, entry_id)
    if not decided:
        raise Conflict(f"this entry was {entry['resolution']} already")
    return entry
