"""Cancel, as asked for from outside: at once for a queued job, by a flag for a running one."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select, update

from schemas.errors import NotFound, TransitionRefused
from storage.database import RunAgain
from storage.jobs import settle
from storage.jobs.statements import Recorded
from storage.tables import jobs

_JOB = select(jobs.c.id, jobs.c.epoch, jobs.c.status, jobs.c.attempt).where(
    jobs.c.id == bindparam("job"), jobs.c.tenant == bindparam("owner")
)
#: Not a transition: a finish that commits first wins.
_FLAG = (
    update(jobs)
    .where(jobs.c.id == bindparam("the_job"), jobs.c.epoch == bindparam("old_epoch"), jobs.c.status == "running")
    .values(cancel_reason=bindparam("reason"))
)


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """What became of a wish to cancel."""

    #: `cancelled` (it was queued), `stopping` (it runs; the terminal event tells), or `ended` (it was over already).
    result: str
    #: The terminal event, if the job was queued.
    recorded: Recorded | None = None


def request_cancel(connection: Connection, tenant: str, job_id: str, reason: str) -> CancelRequest:
    """Cancel a queued job, or flag a running one; a job that has ended stays as it is. Raises NotFound."""
    job = connection.execute(_JOB, {"job": job_id, "owner": tenant}).one_or_none()
    if job is None:
        raise NotFound("there is no such job")
    if job.status == "queued":
        try:
            return CancelRequest("cancelled", settle.cancel(connection, job_id, job.epoch, reason))
        except TransitionRefused:
            raise RunAgain from None  # it was claimed in between
    if job.status == "running":
        flagged = {"the_job": job_id, "old_epoch": job.epoch, "reason": reason}
        if connection.execute(_FLAG, flagged).rowcount != 1:
            raise RunAgain  # it ended or was rebuilt in between
        return CancelRequest("stopping")
    return CancelRequest("ended")
