"""Claims, openings and streams as a worker's parts are given them, without a database behind."""

from __future__ import annotations

from typing import Any

from schemas.chat_job import ChatJob
from schemas.ids import new_id
from schemas.job_event import encode_event
from storage.jobs.claim import Claim
from storage.jobs.statements import Recorded


def recorded(kind: str, epoch: int, event_kind: str, *, job_id: str | None = None, **fields: Any) -> Recorded:
    """A committed transition with its event."""
    job_id = job_id or new_id()
    return Recorded(job_id, epoch, kind, encode_event(event_kind, job_id, 0, **fields))


def opening(job_id: str | None = None, epoch: int = 1) -> Recorded:
    """The `started` of an attempt."""
    return recorded("claim", epoch, "started", job_id=job_id, attempt=1, worker="w")


def a_claim(text: str = "hello", *, attempt: int = 1, epoch: int = 1) -> Claim:
    """An attempt as claimed."""
    job = ChatJob(message=text)
    session: dict[str, Any] = {"system": None, "language": None, "tools": None, "parameters": {}}
    return Claim(
        job_id=job.job_id,
        tenant=job.tenant,
        queue=job.queue,
        session_id=new_id(),
        epoch=epoch,
        attempt=attempt,
        failures=0,
        deadline_at=3_600_000_000,
        accepted_at=0,
        claimed_at=0,
        due_at=0,
        user_message_id=new_id(),
        user_message=text,
        history_leaf=None,
        job=job,
        agent_framework="scripted",
        model=None,
        user_id=None,
        session=session,
        recorded=opening(job.job_id, epoch),
    )
