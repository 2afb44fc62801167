"""Reads what SQL, the logs and the tools' file hold when a run is over."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Any

import orjson
from sqlalchemy import Connection, Table, select

from schemas.errors import StorageUnavailable
from storage.event_log import EventLog
from storage.jobs.views import ENDED_STATUSES
from storage.tables import (
    attempts,
    breakers,
    dead_letters,
    jobs,
    lanes,
    messages,
    rounds,
    sessions,
    tool_calls,
    transitions,
)
from tests.chaos.effects import read_effects
from tests.chaos.evidence import Evidence, LogLine, Row
from tests.chaos.stage import Stage
from tests.integration.storage.rules import BrokenRule, Tables, check

#: Written down with every run: a PostgreSQL server leaves nothing behind.
TABLES = (jobs, transitions, attempts, lanes, breakers, sessions, messages, dead_letters, tool_calls, rounds)


async def unfinished(stage: Stage) -> list[str]:
    """The ids of jobs that have not ended. Raises StorageUnavailable."""
    query = select(jobs.c.id).where(jobs.c.status.not_in(sorted(ENDED_STATUSES)))
    return await stage.database.read(lambda connection: [row.id for row in connection.execute(query)])


async def epoch_of(stage: Stage, job_id: str) -> int | None:
    """Where a job stands; None if SQL does not answer at this moment."""
    query = select(jobs.c.epoch).where(jobs.c.id == job_id)
    try:
        return await stage.database.read(lambda connection: connection.execute(query).scalar())
    except StorageUnavailable:
        return None


async def untold(stage: Stage, since_us: int) -> list[str]:
    """The ids of jobs that ended after `since_us` and whose log does not end with their end."""
    query = select(jobs.c.id, jobs.c.epoch).where(jobs.c.ended_at > since_us)
    ended = await stage.database.read(lambda connection: {row.id: row.epoch for row in connection.execute(query)})
    redis = stage.redis()
    try:
        log = _log(stage, redis)
        last = await log.last_ids(list(ended)) if ended else []
        return [job_id for (job_id, epoch), at in zip(ended.items(), last, strict=True) if at != (epoch, 1)]
    finally:
        await redis.aclose()


async def collect(stage: Stage, evidence: Evidence) -> None:
    """Fill in what is there now."""
    evidence.timeline = stage.timeline
    evidence.effects = read_effects(stage.effects)
    evidence.begun = {
        (event["job_id"], event["attempt"])
        for worker in stage.workers
        for event in worker.events
        if event.get("event") == "attempt started"
    }
    await stage.database.read(_read_tables, evidence)
    await _read_logs(stage, evidence)
    evidence.broken_rules = await _broken_rules(stage)


def _read_tables(connection: Connection, evidence: Evidence) -> None:
    evidence.jobs = {row["id"]: row for row in _rows(connection, jobs)}
    evidence.messages = {row["id"]: row for row in _rows(connection, messages)}
    evidence.sessions = {row["id"]: row for row in _rows(connection, sessions)}
    evidence.transitions = _by_job(_rows(connection, transitions), "epoch")
    evidence.attempts = _by_job(_rows(connection, attempts), "attempt")
    evidence.dead_letters = _by_job(_rows(connection, dead_letters), "created_at")


def _rows(connection: Connection, table: Table) -> list[Row]:
    return [dict(row) for row in connection.execute(select(table)).mappings()]


def _by_job(rows: list[Row], order: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row[order]):
        found[row["job_id"]].append(row)
    return dict(found)


async def _read_logs(stage: Stage, evidence: Evidence) -> None:
    redis = stage.redis()
    try:
        log = _log(stage, redis)
        for job_id in evidence.jobs:
            lines = [
                LogLine(entry.id, entry.event, entry.terminal) for entry in await log.read(job_id, count=1_000_000)
            ]
            if lines:
                evidence.logs[job_id] = lines
    finally:
        await redis.aclose()


async def _broken_rules(stage: Stage) -> list[str]:
    """What the walks check after each step, once for all that happened here."""
    tables: Tables = await stage.database.read(Tables.read)
    for history in tables.transitions.values():
        for step in history:
            # In the order in which they were made: their times may have been stepped.
            step["at"] = step["position"]
    found = []
    for job_id in tables.jobs:
        try:
            check(tables, [job_id])
        except BrokenRule as error:
            found.append(str(error))
    return sorted(set(found))


def _log(stage: Stage, redis: Any) -> EventLog:
    return EventLog(redis, stage.namespace, ttl_live_s=3600, ttl_ended_s=3600)


async def write_down(stage: Stage, evidence: Evidence) -> None:
    """Leave what people look for first in the stage's folder."""
    rows = await stage.database.read(lambda connection: {one.name: _rows(connection, one) for one in TABLES})
    (stage.folder / "rows.json").write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))
    happenings = [
        {**asdict(one), "victims": sorted(one.victims), "told": sorted(one.told)}
        for one in evidence.timeline.happenings
    ]
    (stage.folder / "timeline.json").write_bytes(orjson.dumps(happenings, option=orjson.OPT_INDENT_2))
    clients = [
        {
            "job_id": client.job_id,
            "name": client.name,
            "sittings": [
                {"cursor": one.cursor, "status": one.status, "body": one.body.decode(errors="replace")}
                for one in client.sittings
            ],
        }
        for client in evidence.clients
    ]
    (stage.folder / "clients.json").write_bytes(orjson.dumps(clients, option=orjson.OPT_INDENT_2))
