"""The order in which rows are locked: lanes (by name), session, job.

SQLite has one writer, who holds everything; there the locks cost nothing and do nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, bindparam, select

from storage.tables import lanes, sessions

_LANE = (
    select(lanes.c.running)
    .where(lanes.c.lane == bindparam("lane"), lanes.c.tenant == bindparam("tenant"))
    .with_for_update()
)
_SESSION = select(sessions.c.id).where(sessions.c.id == bindparam("session_id")).with_for_update()

#: (lane, tenant)
LaneKey = tuple[str, str]


def lock_lanes(connection: Connection, keys: Iterable[LaneKey]) -> None:
    """Lock the lanes, in the one order that cannot deadlock."""
    if connection.dialect.name == "sqlite":
        return
    for lane, tenant in sorted(set(keys)):
        connection.execute(_LANE, {"lane": lane, "tenant": tenant})


def lock_session(connection: Connection, session_id: str) -> None:
    """Lock the session; its jobs' places and its active branch change only under this lock."""
    if connection.dialect.name == "sqlite":
        return
    connection.execute(_SESSION, {"session_id": session_id})
