"""Refuse: a raw producer's job that cannot be accepted still ends in one outcome, under the id its producer chose.

It is made and dead-lettered in one transaction, so that whoever follows the id sees `queued`, then `failed`.
"""

from __future__ import annotations

from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert

from schemas.errors import JobError
from schemas.ids import new_id
from storage.database import RunAgain
from storage.jobs.statements import Recorded, read_clock, record
from storage.sessions import NewSession, insert_session
from storage.tables import dead_letters, job_bodies, jobs

_KNOWN = select(jobs.c.id).where(jobs.c.id == bindparam("job"))
#: SQLAlchemy keeps the row count of updates only, unless told to.
_INSERT_JOB = upsert(jobs).on_conflict_do_nothing().execution_options(preserve_rowcount=True)
_INSERT_BODY = insert(job_bodies)
_INSERT_DEAD_LETTER = insert(dead_letters)
#: No digest of an accepted body looks like this, so the id stays taken.
NO_DIGEST = "refused"


def refuse(
    connection: Connection,
    tenant: str,
    job_id: str,
    queue: str,
    framework: str,
    argument: dict[str, Any],
    error: JobError,
) -> list[Recorded]:
    """Store the job as dead with its dead letter; returns both events. Does nothing if the id is taken already."""
    if connection.execute(_KNOWN, {"job": job_id}).one_or_none() is not None:
        return []
    now = read_clock(connection)
    session = NewSession(tenant=tenant, hidden=True, agent_framework=framework, next_seq=2)
    insert_session(connection, session, active_leaf=None, now=now)
    made = connection.execute(
        _INSERT_JOB,
        {
            "id": job_id,
            "tenant": tenant,
            "queue": queue,
            "lane": queue,
            "session_id": session.id,
            "session_seq": 1,
            "head": False,
            "status": "dead",
            "epoch": 1,
            "rank": 0,
            "due_at": now,
            "deadline_at": now,
            "user_message_id": new_id(),
            "agent_framework": framework,
            "error_code": error.code,
            "created_at": now,
            "ended_at": now,
        },
    )
    if not made.rowcount:
        raise RunAgain  # somebody else has just stored it
    try:
        orjson.dumps(argument)
    except TypeError:
        argument = {"unstorable": repr(argument)[:1000]}
    connection.execute(_INSERT_BODY, {"job_id": job_id, "tenant": tenant, "body": argument, "digest": NO_DIGEST})
    dead_letter_id = new_id()
    connection.execute(
        _INSERT_DEAD_LETTER,
        {
            "id": dead_letter_id,
            "tenant": tenant,
            "job_id": job_id,
            "queue": queue,
            "epoch": 1,
            "error": error.model_dump(),
            "error_code": error.code,
            "agent_framework": framework,
            "model": None,
            "created_at": now,
        },
    )
    events: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("accept", "queued", {"queue": queue, "session_id": session.id}),
        ("fail", "failed", {"error": error.model_dump(), "dead_letter_id": dead_letter_id}),
    )
    return [
        record(
            connection,
            tenant=tenant,
            job_id=job_id,
            epoch=epoch,
            kind=kind,
            at=now,
            event_kind=event_kind,
            queue=queue,
            fields=fields,
        )
        for epoch, (kind, event_kind, fields) in enumerate(events)
    ]
