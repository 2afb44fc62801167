"""The figures of the metrics count what there is, and read no table of finished jobs."""

from __future__ import annotations

from sqlalchemy import Connection, insert

from schemas.chat_job import ChatJob
from schemas.ids import new_id
from storage.clock import to_us
from storage.counts import read_counts
from storage.database import Database
from storage.jobs.accept import accept
from storage.jobs.claim import claim
from storage.jobs.settle import finish
from storage.jobs.statements import read_clock
from storage.tables import breakers, paused_queues, quarantine
from tests.integration.storage.acts import FRAMEWORK, LEASE_US, TENANT, pass_time, said
from tests.integration.storage.test_query_plans import fill, plan, reads_all, recorded


async def test_an_empty_database_counts_nothing(database: Database) -> None:
    counts = await database.read(read_counts)
    assert (counts.queued, counts.due, counts.running, counts.paused_s) == ({}, {}, {}, {})
    assert (counts.dead_letters, counts.quarantined, counts.open_breakers) == (0, 0, 0)


async def test_only_heads_of_sessions_are_due_and_the_oldest_tells_its_age(database: Database) -> None:
    def act(connection: Connection) -> None:
        opened = accept(connection, ChatJob(message="one"), FRAMEWORK)
        accept(connection, ChatJob(message="behind it", session_id=opened.session_id), FRAMEWORK)
        accept(connection, ChatJob(message="bulk", queue="bulk"), FRAMEWORK)
        done = claim(connection, "bulk", "w", LEASE_US)
        assert done is not None
        finish(connection, done.job_id, done.epoch, said("x"), None)
        accept(connection, ChatJob(message="runs", queue="bulk"), FRAMEWORK)
        assert claim(connection, "bulk", "w", LEASE_US) is not None
        pass_time(connection, 30)

    await database.write(act)
    counts = await database.read(read_counts)
    assert counts.queued == {"chat": 2}
    assert counts.due == {"chat": 1}
    assert counts.running == {"bulk": 1}
    assert 30 <= counts.oldest_due_s["chat"] < 60


async def test_what_waits_for_a_person_is_counted(database: Database) -> None:
    def act(connection: Connection) -> None:
        now = read_clock(connection)
        about = {"tenant": TENANT, "queue": "chat", "reason": "r", "payload": b"x", "created_at": now}
        connection.execute(insert(quarantine), {**about, "id": new_id()})
        connection.execute(insert(quarantine), {**about, "id": new_id(), "resolution": "dropped", "resolved_at": now})
        connection.execute(insert(paused_queues), {"queue": "chat", "reason": "r", "paused_at": now - to_us(60)})
        broken = {"failures": 5, "pause_us": 1, "updated_at": now}
        connection.execute(insert(breakers), {**broken, "name": "open", "opened_at": now})
        connection.execute(insert(breakers), {**broken, "name": "closed", "opened_at": None})

    await database.write(act)
    counts = await database.read(read_counts)
    assert (counts.quarantined, counts.open_breakers) == (1, 1)
    assert 60 <= counts.paused_s["chat"] < 90


async def test_no_figure_reads_the_finished_jobs(database: Database) -> None:
    await database.write(fill)

    def explain(connection: Connection) -> dict[str, str]:
        with recorded(connection) as seen:
            read_counts(connection)
        statements = [one for one in seen if not one[0].startswith("BEGIN")]
        return {statement: plan(connection, statement, parameters) for statement, parameters in statements}

    plans = await database.read(explain)
    assert sum("FROM jobs" in statement for statement in plans) == 3
    for statement, found in plans.items():
        assert not reads_all(found), f"{statement}\n\nreads a table from end to end:\n{found}"
