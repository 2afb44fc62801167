"""Bulk runs: redrive, discard or cancel for everything that meets a filter, one item a transaction.

Whoever holds a run's lease works it off. `lease_until` is the lease and its holder's token in one: each write compares
it with the value the holder wrote last, so that of two runners only one gets on, and a run that was aborted takes no
further item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, case, insert, literal_column, select, update

from schemas.errors import Conflict, NotFound
from schemas.ids import new_id
from storage import dead_letters
from storage.clock import now_us, to_us
from storage.jobs import selection
from storage.jobs.cancel import request_cancel
from storage.jobs.redrive import discard, redrive
from storage.jobs.statements import Recorded, read_clock
from storage.tables import bulk_runs

LEASE_US = to_us(5)

_INSERT = insert(bulk_runs)
_OWN = (bulk_runs.c.id == bindparam("run")) & (bulk_runs.c.tenant == bindparam("owner"))
_GET = select(bulk_runs).where(_OWN)
#: As the partial index spells it.
_RUNNING: ColumnElement[bool] = literal_column("bulk_runs.state = 'running'")
_UNHELD = select(bulk_runs).where(_RUNNING, bulk_runs.c.lease_until < now_us()).order_by(bulk_runs.c.id)
_HELD = (
    (bulk_runs.c.id == bindparam("the_run"))
    & (bulk_runs.c.state == "running")
    & (bulk_runs.c.lease_until == bindparam("held"))
)
_HOLD = (
    update(bulk_runs)
    .where(_HELD)
    .values(
        # Never the same value twice: it is the token.
        lease_until=case(
            (bulk_runs.c.lease_until >= now_us() + LEASE_US, bulk_runs.c.lease_until + 1), else_=now_us() + LEASE_US
        ),
        cursor=bindparam("new_cursor"),
        done=bulk_runs.c.done + bindparam("more_done"),
        skipped=bulk_runs.c.skipped + bindparam("more_skipped"),
    )
    .returning(bulk_runs.c.lease_until)
)
_FINISH = (
    update(bulk_runs)
    .where(_HELD)
    .values(
        state="finished",
        ended_at=now_us(),
        # What somebody else had dealt with before it was reached was never met.
        skipped=case((bulk_runs.c.total > bulk_runs.c.done, bulk_runs.c.total - bulk_runs.c.done), else_=0),
    )
)
_ABORT = update(bulk_runs).where(_OWN, bulk_runs.c.state == "running").values(state="aborted", ended_at=now_us())


class LeaseLost(Exception):
    """The run was aborted, or another process holds it."""


@dataclass(frozen=True, slots=True)
class Held:
    """A run in the hands of one runner."""

    id: str
    tenant: str
    action: str
    filter: Mapping[str, Any]
    reason: str
    rate: float | None
    #: Items that came later are not touched.
    began_us: int
    cursor: str | None
    #: The token.
    lease_until: int


@dataclass(frozen=True, slots=True)
class Step:
    """What became of one item."""

    done: bool
    lease_until: int
    #: The transition, if it made one.
    recorded: Recorded | None = None
    #: The job whose worker is to be told to stop.
    stopping: str | None = None


def preview(
    connection: Connection, tenant: str, action: str, wanted: Mapping[str, Any], most: int
) -> tuple[int, list[str]]:
    """How many items meet the filter, and the ids of the first few."""
    now = read_clock(connection)
    count, following = _items(action)
    return count(connection, tenant, wanted, now), following(connection, tenant, wanted, now, None, most)


def start(
    connection: Connection,
    tenant: str,
    action: str,
    wanted: Mapping[str, Any],
    *,
    rate: float | None = None,
    reason: str = "",
) -> dict[str, Any]:
    """Begin a run over what meets the filter now; returns its row. One over nothing is finished at once."""
    now = read_clock(connection)
    total = _items(action)[0](connection, tenant, wanted, now)
    run_id = new_id()
    connection.execute(
        _INSERT,
        {
            "id": run_id,
            "tenant": tenant,
            "action": action,
            "filter": dict(wanted),
            "reason": reason,
            "rate": rate,
            "total": total,
            "state": "running" if total else "finished",
            "created_at": now,
            "ended_at": None if total else now,
        },
    )
    return get_run(connection, tenant, run_id)


def get_run(connection: Connection, tenant: str, run_id: str) -> dict[str, Any]:
    """The run's row; raises NotFound if it is missing or another tenant's."""
    row = connection.execute(_GET, {"run": run_id, "owner": tenant}).mappings().one_or_none()
    if row is None:
        raise NotFound("there is no such bulk run")
    return dict(row)


def list_runs(
    connection: Connection, tenant: str, *, limit: int, before: str | None = None, state: str | None = None
) -> list[dict[str, Any]]:
    """The tenant's runs, newest first; `before` is the last id of the page before."""
    query = select(bulk_runs).where(bulk_runs.c.tenant == tenant)
    if before is not None:
        query = query.where(bulk_runs.c.id < before)
    if state is not None:
        query = query.where(bulk_runs.c.state == state)
    rows = connection.execute(query.order_by(bulk_runs.c.id.desc()).limit(limit)).mappings()
    return [dict(row) for row in rows]


def abort(connection: Connection, tenant: str, run_id: str) -> dict[str, Any]:
    """No item of the run is dealt with after this has committed; one that had ended stays as it is. Raises NotFound."""
    connection.execute(_ABORT, {"run": run_id, "owner": tenant})
    return get_run(connection, tenant, run_id)


def unheld(connection: Connection, most: int) -> list[Held]:
    """Runs that nobody works on."""
    return [
        Held(
            row.id,
            row.tenant,
            row.action,
            row.filter,
            row.reason,
            row.rate,
            row.created_at,
            row.cursor,
            row.lease_until,
        )
        for row in connection.execute(_UNHELD.limit(most))
    ]


def hold(connection: Connection, run: Held) -> int:
    """Take the lease, or renew it; returns the new token. Raises LeaseLost."""
    return _advance(connection, run, run.cursor)


def next_items(connection: Connection, run: Held, most: int) -> list[str]:
    """The next items behind the cursor."""
    following = _items(run.action)[1]
    return following(connection, run.tenant, run.filter, run.began_us, run.cursor, most)


def step(connection: Connection, run: Held, item: str) -> Step:
    """Deal with one item and move the cursor behind it. Raises LeaseLost; then nothing has happened."""
    recorded, stopping, done = None, None, True
    try:
        if run.action == "redrive":
            recorded = redrive(connection, run.tenant, item)
        elif run.action == "discard":
            recorded = discard(connection, run.tenant, item)
        else:
            asked = request_cancel(connection, run.tenant, item, run.reason)
            recorded, done = asked.recorded, asked.result != "ended"
            stopping = item if asked.result == "stopping" else None
    except (Conflict, NotFound):
        done = False  # both are found out before anything is written
    return Step(done, _advance(connection, run, item, done=done, skipped=not done), recorded, stopping)


def skip(connection: Connection, run: Held, item: str) -> int:
    """Leave an item that cannot be dealt with; returns the new token. Raises LeaseLost."""
    return _advance(connection, run, item, skipped=True)


def finish(connection: Connection, run: Held) -> None:
    """All items are dealt with. Raises LeaseLost."""
    if connection.execute(_FINISH, {"the_run": run.id, "held": run.lease_until}).rowcount != 1:
        raise LeaseLost


def _advance(
    connection: Connection, run: Held, cursor: str | None, *, done: bool = False, skipped: bool = False
) -> int:
    held = connection.execute(
        _HOLD,
        {
            "the_run": run.id,
            "held": run.lease_until,
            "new_cursor": cursor,
            "more_done": int(done),
            "more_skipped": int(skipped),
        },
    ).scalar_one_or_none()
    if held is None:
        raise LeaseLost
    return int(held)


_Count = Callable[[Connection, str, Mapping[str, Any], int], int]
_Following = Callable[[Connection, str, Mapping[str, Any], int, "str | None", int], list[str]]


def _items(action: str) -> tuple[_Count, _Following]:
    """How the items of an action are counted, and listed behind a cursor."""
    if action == "cancel":
        return selection.count_unfinished, selection.unfinished_after
    return dead_letters.count_lying, dead_letters.lying_after
