"""Dead letters as people look at them: in lists, by filter, and one with all that is known of its job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, func, literal_column, select

from schemas.errors import NotFound
from storage.jobs.views import get_attempts, get_job
from storage.tables import dead_letters

#: Filters by the columns they compare; `since` and `until` are times of death in microseconds.
_EQUAL = {
    "queue": dead_letters.c.queue,
    "error_code": dead_letters.c.error_code,
    "framework": dead_letters.c.agent_framework,
    "model": dead_letters.c.model,
}
#: As the partial index spells it.
_LYING: ColumnElement[bool] = literal_column("dead_letters.resolution IS NULL")
_LETTER = select(dead_letters).where(
    dead_letters.c.id == bindparam("letter"), dead_letters.c.tenant == bindparam("owner")
)


def list_letters(
    connection: Connection,
    tenant: str,
    *,
    limit: int,
    before: str | None = None,
    state: str = "lying",
    wanted: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """The tenant's letters that meet the filter `wanted`, newest first; `before` is the last id of the page before.

    `state` is `lying` (nobody has decided yet), `redriven` or `discarded`.
    """
    query = select(dead_letters).where(dead_letters.c.tenant == tenant, *_conditions(wanted))
    query = query.where(_LYING if state == "lying" else dead_letters.c.resolution == state)
    if before is not None:
        query = query.where(dead_letters.c.id < before)
    rows = connection.execute(query.order_by(dead_letters.c.id.desc()).limit(limit)).mappings()
    return [dict(row) for row in rows]


def get_letter(connection: Connection, tenant: str, letter_id: str) -> dict[str, Any]:
    """The letter's row, with its `job` (as `get_job` tells it) and all of the job's `attempts`.

    Raises NotFound if it is missing or another tenant's.
    """
    row = connection.execute(_LETTER, {"letter": letter_id, "owner": tenant}).mappings().one_or_none()
    if row is None:
        raise NotFound("there is no such dead letter")
    job = get_job(connection, tenant, row["job_id"])
    return {**row, "job": job, "attempts": get_attempts(connection, row["job_id"])}


def count_lying(connection: Connection, tenant: str, wanted: Mapping[str, Any], until_us: int) -> int:
    """How many letters lie there that meet the filter and were there at `until_us`."""
    query = select(func.count()).select_from(dead_letters).where(*_lying(tenant, wanted, until_us))
    return int(connection.execute(query).scalar_one())


def lying_after(
    connection: Connection, tenant: str, wanted: Mapping[str, Any], until_us: int, cursor: str | None, most: int
) -> list[str]:
    """The next ids behind `cursor`, in order."""
    query = select(dead_letters.c.id).where(*_lying(tenant, wanted, until_us))
    if cursor is not None:
        query = query.where(dead_letters.c.id > cursor)
    return list(connection.execute(query.order_by(dead_letters.c.id).limit(most)).scalars())


def _lying(tenant: str, wanted: Mapping[str, Any], until_us: int) -> list[ColumnElement[bool]]:
    return [
        _LYING,
        dead_letters.c.tenant == tenant,
        dead_letters.c.created_at <= until_us,
        *_conditions(wanted),
    ]


def _conditions(wanted: Mapping[str, Any]) -> list[ColumnElement[bool]]:
    conditions = [column == wanted[name] for name, column in _EQUAL.items() if name in wanted]
    if "since" in wanted:
        conditions.append(dead_letters.c.created_at >= wanted["since"])
    if "until" in wanted:
        conditions.append(dead_letters.c.created_at < wanted["until"])
    return conditions
