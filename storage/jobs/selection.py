"""Unfinished jobs by filter, in the order of their ids: what a bulk cancel works through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import CTE, Connection, func, select

from storage.jobs.statements import UNFINISHED
from storage.tables import jobs

#: Filters by the columns they compare; `since` and `until` are times of acceptance in microseconds.
_EQUAL = {
    "queue": jobs.c.queue,
    "status": jobs.c.status,
    "session_id": jobs.c.session_id,
    "framework": jobs.c.agent_framework,
    "model": jobs.c.model,
}
#: True for every job; makes the index of the unfinished ones one that can be searched.
_IN_INDEX = jobs.c.session_id > ""


def count_unfinished(connection: Connection, tenant: str, wanted: Mapping[str, Any], until_us: int) -> int:
    """How many jobs are queued or running that meet the filter and were accepted by `until_us`."""
    found = _found(tenant, wanted, until_us)
    return int(connection.execute(select(func.count()).select_from(found)).scalar_one())


def unfinished_after(
    connection: Connection, tenant: str, wanted: Mapping[str, Any], until_us: int, cursor: str | None, most: int
) -> list[str]:
    """The next ids behind `cursor`, in order."""
    found = _found(tenant, wanted, until_us)
    query = select(found.c.id)
    if cursor is not None:
        query = query.where(found.c.id > cursor)
    return list(connection.execute(query.order_by(found.c.id).limit(most)).scalars())


def _found(tenant: str, wanted: Mapping[str, Any], until_us: int) -> CTE:
    """Materialized, or the order by id would make a database walk over every job there ever was."""
    conditions = [column == wanted[name] for name, column in _EQUAL.items() if name in wanted]
    if "since" in wanted:
        conditions.append(jobs.c.created_at >= wanted["since"])
    if "until" in wanted:
        conditions.append(jobs.c.created_at < wanted["until"])
    query = select(jobs.c.id).where(
        UNFINISHED,
        _IN_INDEX,
        # Not as the indexes have it, or one that holds every job of the tenant would seem the better choice.
        jobs.c.tenant + "" == tenant,
        jobs.c.created_at <= until_us,
        *conditions,
    )
    return query.cte("found").prefix_with("MATERIALIZED")
