"""Fills a database with a long past: jobs that ended, with what is kept of each."""

from __future__ import annotations

from sqlalchemy import Connection, text

from storage.jobs.statements import read_clock

#: Jobs of one session.
JOBS_OF_A_SESSION = 10
DAY_US = 86_400_000_000

#: 36 characters, in order, and unlike any that is made elsewhere. `i` counts from 1 on both databases.
_ID = "'00000000-0000-7000-8000-' || substr(CAST(1000000000000 + i AS VARCHAR), 2)"
_SESSION = f"'00000000-0000-7000-9000-' || substr(CAST(1000000000000 + i / {JOBS_OF_A_SESSION} AS VARCHAR), 2)"
_COUNT = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)"
#: The last one ended a minute ago, the first one almost a month.
_AT = ":now - 60000000 - CAST((:count - i) * (25.0 * :day / :count) AS BIGINT)"
_EVENT = """'{"kind":"final","job_id":"' || JOB || '","at":"2026-01-01T00:00:00.000Z","outcome":"ok","response":[]}'"""

_STATEMENTS = (
    f"""INSERT INTO jobs (id, tenant, queue, lane, session_id, session_seq, head, status, epoch, rank, due_at,
        deadline_at, attempt, user_message_id, agent_framework, outcome, created_at, started_at, ended_at)
        {_COUNT} SELECT {_ID}, 'default', 'chat', 'chat', {_SESSION}, i % {JOBS_OF_A_SESSION}, {{false}}, 'finished',
        2, 0, {_AT}, {_AT} + 3600000000, 1, {_ID}, 'langgraph', 'ok', {_AT} - 3000000, {_AT} - 2900000, {_AT} FROM n""",
    f"""INSERT INTO job_bodies (job_id, tenant, body, digest)
        {_COUNT} SELECT {_ID}, 'default', '{{{{"message":"What is 17 * 23, and how is that worked out?"}}}}', 'none'
        FROM n""",
    f"""INSERT INTO attempts (job_id, attempt, tenant, epoch, worker, started_at, ended_at, ending)
        {_COUNT} SELECT {_ID}, 1, 'default', 1, 'w' || CAST(i / 5000 AS VARCHAR), {_AT} - 2900000, {_AT}, 'finish'
        FROM n""",
    *(
        f"""INSERT INTO transitions (xid, tenant, job_id, epoch, kind, at, event)
        {_COUNT} SELECT 0, 'default', {_ID}, {epoch}, '{kind}', {_AT} - {before}, {_EVENT.replace("JOB", _ID)} FROM n"""
        for epoch, (kind, before) in enumerate((("accept", 3_000_000), ("claim", 2_900_000), ("finish", 0)))
    ),
)


def add_history(connection: Connection, count: int) -> None:
    """Add `count` finished jobs, one attempt and three transitions each, over the last 25 days."""
    now = read_clock(connection)
    false = "0" if connection.dialect.name == "sqlite" else "false"
    for statement in _STATEMENTS:
        filled = statement.replace("{false}", false).replace("{{", "{").replace("}}", "}")
        # A colon in a literal is not a parameter.
        escaped = filled.replace('":', '"\\:').replace("T00:00:00", "T00\\:00\\:00")
        connection.execute(text(escaped), {"count": count, "now": now, "day": DAY_US})


def analyze(connection: Connection) -> None:
    """Let the database know its own data, as it would by itself after a while."""
    connection.execute(text("ANALYZE"))
