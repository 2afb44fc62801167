"""Statements that several transitions share, built once: building them at each call costs four times their run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, case, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert  # its ON CONFLICT DO NOTHING compiles for SQLite as well

from schemas.job_event import encode_event, is_terminal
from storage.clock import current_xid, now_us
from storage.tables import jobs, lanes, sessions, transitions

#: Jobs of one lane that run at once, unless the lane says otherwise.
DEFAULT_RUNNING_LIMIT = 10_000

CLOCK = select(now_us().label("now"))

_INSERT_TRANSITION = insert(transitions).values(
    xid=current_xid(),
    tenant=bindparam("tenant"),
    job_id=bindparam("job_id"),
    epoch=bindparam("epoch"),
    kind=bindparam("kind"),
    at=bindparam("at"),
    event=bindparam("event"),
)

#: `next_due` is never late: it only moves forward in a claim that found nothing.
_EARLIER = case(
    (lanes.c.next_due.is_(None) | (lanes.c.next_due > bindparam("due")), bindparam("due")), else_=lanes.c.next_due
)
_THE_LANE = (lanes.c.lane == bindparam("the_lane")) & (lanes.c.tenant == bindparam("the_tenant"))
_WORK_DUE = update(lanes).where(_THE_LANE).values(next_due=_EARLIER)
_LEAVE_LANE = update(lanes).where(_THE_LANE).values(running=lanes.c.running - 1)
_NEW_LANE = insert(lanes).on_conflict_do_nothing().returning(lanes.c.lane)

#: The literals are what the partial indexes say: a bound parameter would not use them.
UNFINISHED: ColumnElement[bool] = literal_column("jobs.status IN ('queued', 'running')")
RUNNABLE: ColumnElement[bool] = literal_column("jobs.status = 'queued' AND jobs.head")
_HEIR = (
    select(jobs.c.id, jobs.c.lane, jobs.c.tenant, jobs.c.due_at)
    .where(UNFINISHED, jobs.c.session_id == bindparam("the_session"), jobs.c.session_seq > bindparam("after"))
    .order_by(jobs.c.session_seq)
    .limit(1)
)
_PROMOTE = update(jobs).where(jobs.c.id == bindparam("the_id")).values(head=True)
MOVE_LEAF = (
    update(sessions)
    .where(sessions.c.id == bindparam("the_session"))
    .values(active_leaf=bindparam("leaf"), updated_at=bindparam("now"))
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A transition as committed: where its event goes in the log, and the event itself."""

    job_id: str
    epoch: int
    kind: str
    event: bytes
    #: The lane this transition gave work to do at once: ring it.
    wakes: str | None = None
    #: Microseconds until the job may run again, if it is to.
    due_in_us: int | None = None
    #: The job's queue; empty where the transition was looked up, not made.
    queue: str = ""

    @property
    def terminal(self) -> bool:
        """Whether it ended the job."""
        return is_terminal(self.event)


def read_clock(connection: Connection) -> int:
    """The database's time in microseconds."""
    return int(connection.execute(CLOCK).scalar_one())


def record(
    connection: Connection,
    *,
    tenant: str,
    job_id: str,
    epoch: int,
    kind: str,
    at: int,
    event_kind: str,
    fields: dict[str, Any],
    queue: str = "",
    wakes: str | None = None,
    due_in_us: int | None = None,
) -> Recorded:
    """Write the row of `transitions` and return it with its event encoded, once and for all."""
    event = encode_event(event_kind, job_id, at, **fields)
    connection.execute(
        _INSERT_TRANSITION,
        {"tenant": tenant, "job_id": job_id, "epoch": epoch, "kind": kind, "at": at, "event": event.decode()},
    )
    return Recorded(job_id, epoch, kind, event, wakes, due_in_us, queue)


def work_is_due(connection: Connection, lane: str, tenant: str, due: int) -> None:
    """Say that the lane has work at `due`; makes the lane if it is new."""
    key = {"the_lane": lane, "the_tenant": tenant, "due": due}
    if connection.execute(_WORK_DUE, key).rowcount:
        return
    make_lane(connection, lane, tenant)
    connection.execute(_WORK_DUE, key)


def make_lane(connection: Connection, lane: str, tenant: str) -> bool:
    """Make the lane if there is none; returns whether it was made here."""
    new = {"lane": lane, "tenant": tenant, "running_limit": DEFAULT_RUNNING_LIMIT}
    return connection.execute(_NEW_LANE, new).one_or_none() is not None


def leave_lane(connection: Connection, lane: str, tenant: str) -> None:
    """A job of the lane stops running."""
    connection.execute(_LEAVE_LANE, {"the_lane": lane, "the_tenant": tenant})


def find_heir(connection: Connection, session_id: str, session_seq: int) -> Any:
    """The next unfinished job of the session: (id, lane, tenant, due_at), or None."""
    return connection.execute(_HEIR, {"the_session": session_id, "after": session_seq}).one_or_none()


def promote(connection: Connection, heir: Any) -> None:
    """Make the heir the head of its session; it may be claimed from now on."""
    connection.execute(_PROMOTE, {"the_id": heir.id})
    # Not from now on: if the clock steps back, its lane must not wait for what is due already.
    work_is_due(connection, heir.lane, heir.tenant, heir.due_at)
