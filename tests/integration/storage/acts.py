"""What the tests of storage do again and again, in short words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table, select, update

from schemas.agent_message import AgentMessage
from schemas.chat_job import ChatJob
from schemas.errors import JobError
from schemas.job_event import rfc3339
from storage.clock import to_us
from storage.database import Database
from storage.jobs.accept import Accepted, accept
from storage.jobs.claim import Claim, claim
from storage.jobs.settle import fail, finish
from storage.jobs.statements import Recorded
from storage.tables import breakers, dead_letters, jobs, lanes, metadata, transitions

TENANT = "default"
FRAMEWORK = "echo"
LEASE_US = to_us(15)
BROKEN = JobError(code="provider_error", message="the model did not answer", retryable=True)
HOPELESS = JobError(code="bad_request", message="the model refused the request", retryable=False)


async def ask(database: Database, message: str = "hello", **fields: Any) -> Accepted:
    """Accept a job with this message."""
    return await database.write(accept, ChatJob(message=message, **fields), FRAMEWORK)


async def again(database: Database, accepted: Accepted, message_id: str, **fields: Any) -> Accepted:
    """Accept a job that answers a message of the session again."""
    return await database.write(
        accept, ChatJob(reply_to=message_id, session_id=accepted.session_id, **fields), FRAMEWORK
    )


async def try_claim(
    database: Database, queue: str = "chat", worker: str = "w", lease_us: int = LEASE_US
) -> Claim | None:
    return await database.write(claim, queue, worker, lease_us)


async def take(database: Database, queue: str = "chat", worker: str = "w", lease_us: int = LEASE_US) -> Claim:
    """Claim a job that must be there."""
    claimed = await try_claim(database, queue, worker, lease_us)
    assert claimed is not None, f"nothing is runnable on {queue}"
    return claimed


async def answer(database: Database, claimed: Claim, text: str = "an answer") -> Recorded:
    """Finish an attempt with this text."""
    return await database.write(finish, claimed.job_id, claimed.epoch, said(text), None)


async def die(
    database: Database, message: str = "hello", error: JobError = HOPELESS, **fields: Any
) -> tuple[str, str, str]:
    """A job that is dead: (letter, job, session)."""
    accepted = await ask(database, message, **fields)
    claimed = await take(database, accepted.queue)
    assert claimed.job_id == accepted.job_id
    await database.write(fail, claimed.job_id, claimed.epoch, error, delay_us=0)
    letter = await row(database, dead_letters, job_id=accepted.job_id)
    return letter["id"], accepted.job_id, accepted.session_id


def said(*texts: str) -> list[AgentMessage]:
    return [AgentMessage.assistant(text) for text in texts]


def pass_time(connection: Connection, seconds: float) -> None:
    """Let time pass for every job: the database's clock cannot be set, so all that is measured by it moves back."""
    us = to_us(seconds)
    connection.execute(
        update(jobs).values(
            due_at=jobs.c.due_at - us, deadline_at=jobs.c.deadline_at - us, lease_until=jobs.c.lease_until - us
        )
    )
    connection.execute(update(breakers).values(probe_at=breakers.c.probe_at - us, opened_at=breakers.c.opened_at - us))
    connection.execute(update(lanes).values(next_due=lanes.c.next_due - us, last_served=lanes.c.last_served - us))


def read_rows(connection: Connection, table: Table, **equal: Any) -> list[dict[str, Any]]:
    query = select(table).filter_by(**equal).order_by(*table.primary_key.columns)
    return [dict(row) for row in connection.execute(query).mappings()]


async def rows(database: Database, table: Table, **equal: Any) -> list[dict[str, Any]]:
    """The rows of a table in the order of its key."""
    return await database.read(lambda connection: read_rows(connection, table, **equal))


async def row(database: Database, table: Table, **equal: Any) -> dict[str, Any]:
    """The one row with these values."""
    (found,) = await rows(database, table, **equal)
    return found


async def job_row(database: Database, job_id: str) -> dict[str, Any]:
    return await row(database, jobs, id=job_id)


async def everything(database: Database) -> dict[str, Sequence[dict[str, Any]]]:
    """Every row of every table, to see that nothing was written."""
    return await database.read(lambda c: {table.name: read_rows(c, table) for table in metadata.sorted_tables})


async def kinds(database: Database, job_id: str) -> list[str]:
    """The kinds of the job's transitions, in order."""
    return [found["kind"] for found in await rows(database, transitions, job_id=job_id)]


async def event_of(database: Database, recorded: Recorded) -> dict[str, Any]:
    """The event as stored, which must be the one returned."""
    stored = await row(database, transitions, job_id=recorded.job_id, epoch=recorded.epoch)
    assert stored["event"].encode() == recorded.event
    assert stored["kind"] == recorded.kind
    event: dict[str, Any] = json.loads(recorded.event)
    assert event["job_id"] == recorded.job_id
    assert event["at"] == rfc3339(stored["at"])
    return event
