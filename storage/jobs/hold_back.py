"""Putting queued jobs off without a transition: nothing is charged, no epoch begins and nobody is told."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from storage.clock import to_us
from storage.jobs.statements import RUNNABLE
from storage.tables import jobs

#: How many jobs a claim that meets an open breaker puts off in one go.
_HELD_AT_ONCE = 500
#: A job that has tried already waits so much longer for the next probe. Meanwhile the reconciler lets the others go,
#: and they come first: one job that no provider can answer must not be the probe for ever.
AFTER_OTHERS_US = to_us(3)

_POSTPONE = (
    update(jobs)
    .where(jobs.c.id == bindparam("the_job"), jobs.c.epoch == bindparam("old_epoch"), jobs.c.status == "queued")
    .values(due_at=bindparam("due"), held_by=bindparam("holder"))
)
#: Jobs that ask the same model for the first time meet the same breaker: they are held together, or each would cost a
#: claim of its own.
_ALIKE = (
    select(jobs.c.id)
    .where(
        RUNNABLE,
        jobs.c.lane == bindparam("the_lane"),
        jobs.c.tenant == bindparam("the_tenant"),
        jobs.c.due_at <= bindparam("now"),
        jobs.c.attempt == 0,
        jobs.c.agent_framework == bindparam("framework"),
        jobs.c.model.is_not_distinct_from(bindparam("the_model", type_=jobs.c.model.type)),
    )
    .limit(_HELD_AT_ONCE)
)
_POSTPONE_ALIKE = (
    update(jobs)
    .where(jobs.c.id.in_(_ALIKE), jobs.c.status == "queued")
    .values(due_at=bindparam("due"), held_by=bindparam("holder"))
)


def put_off(connection: Connection, job: Any, until: int, holder: str | None = None) -> None:
    """Make the job due at `until`, in microseconds; `holder` is the breaker that holds it."""
    connection.execute(_POSTPONE, {"the_job": job.id, "old_epoch": job.epoch, "due": until, "holder": holder})


def hold_back(connection: Connection, job: Any, breaker: str, now: int, until: int) -> None:
    """Put the job off because its breaker is open, and with it those of its lane that would meet the same one."""
    if job.attempt:
        put_off(connection, job, until + AFTER_OTHERS_US, breaker)
        return
    alike = {"the_lane": job.lane, "the_tenant": job.tenant, "framework": job.agent_framework, "the_model": job.model}
    connection.execute(_POSTPONE_ALIKE, {**alike, "due": until, "holder": breaker, "now": now})
