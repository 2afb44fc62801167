"""Many at once: nobody meets a lock or a deadlock, no job is lost, and every rule holds afterwards."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection

from storage.clock import to_us
from storage.database import Database, open_database
from storage.jobs.claim import claim
from storage.jobs.reconcile import expired_jobs, lapsed_jobs
from storage.jobs.settle import expire, finish, lapse
from tests.integration.storage.acts import pass_time, said
from tests.integration.storage.conftest import Shared
from tests.integration.storage.crowd import QUEUES, Crowd
from tests.integration.storage.rules import UNFINISHED, check_rules

ROOT = Path(__file__).parents[3]


async def work_off(database: Database) -> None:
    """Let every job come to its end, as workers and a reconciler would."""
    for _ in range(20):
        await database.write(pass_time, 30)
        for stale in await database.read(expired_jobs, 1000):
            await database.write(expire, stale.job_id, stale.epoch)
        for stale in await database.read(lapsed_jobs, 1000):
            await database.write(lapse, stale.job_id, stale.epoch)
        claimed = None
        for queue in QUEUES:
            while (claimed := await database.write(claim, queue, "last", to_us(60))) is not None:
                await database.write(finish, claimed.job_id, claimed.epoch, said("late"), None)
        tables = await check_rules(database)
        if not any(job["status"] in UNFINISHED for job in tables.jobs.values()):
            return
    pytest.fail("some jobs never come to an end")


async def test_many_tasks_on_two_engines(postgres_database: Database, shared_postgres: Shared) -> None:
    await postgres_database.close()
    before = await deadlocks(shared_postgres.url)
    other = open_database(shared_postgres.url)
    crowds = [Crowd(postgres_database, 1), Crowd(other, 2)]
    await asyncio.gather(*(crowd.run(tasks=12, steps=30) for crowd in crowds))
    tables = await check_rules(postgres_database)
    assert tables.jobs.keys() == crowds[0].accepted.keys() | crowds[1].accepted.keys()
    assert sum(crowd.refused for crowd in crowds) > 0, "they did get into each other's way"
    await work_off(postgres_database)
    for database in (other, postgres_database):
        await database.close()
    assert await deadlocks(shared_postgres.url) == before, "none that was resolved and run again, either"


async def deadlocks(url: str) -> int:
    """How many there ever were, once the server's processes that saw them have ended and handed in their counts."""

    def count(connection: Connection, query: str) -> int:
        return int(connection.exec_driver_sql(query).scalar_one())

    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    database = open_database(url)
    async with asyncio.timeout(10):
        while await database.read(count, others):  # noqa: ASYNC110 - other processes are to end
            await asyncio.sleep(0.01)
    found = await database.read(count, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    await database.close()
    return found


async def test_many_tasks_on_one_sqlite_file(sqlite_database: Database, shared_sqlite: Shared) -> None:
    other = open_database(shared_sqlite.url)
    crowds = [Crowd(sqlite_database, 1), Crowd(other, 2)]
    await asyncio.gather(*(crowd.run(tasks=4, steps=40) for crowd in crowds))
    tables = await check_rules(sqlite_database)
    assert tables.jobs.keys() == crowds[0].accepted.keys() | crowds[1].accepted.keys()
    await work_off(sqlite_database)
    await other.close()


async def test_several_processes_on_one_file_or_server(database: Database, database_url: str) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.integration.storage.crowd", database_url, str(seed)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        for seed in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    outcomes = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [err.decode() for _, err in outcomes] == [""] * 3
    tables = await check_rules(database)
    assert tables.jobs.keys() == {job_id for out, _ in outcomes for job_id in out.decode().split()}
    await work_off(database)
