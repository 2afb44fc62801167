"""SQL may answer questions and take no writes: nobody can renew a lease then, so nobody may call one past."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from sqlalchemy import make_url

from storage.clock import to_us
from storage.jobs.claim import claim
from tests.integration.workers.mill import Mill
from tests.integration.workers.scripted import script
from workers.cancelling import cancel_all

LEASE_S = 2.0
SETTINGS: dict[str, Any] = {"lease_s": LEASE_S, "lease_renew_s": 0.5}


@asynccontextmanager
async def reconciling(mill: Mill) -> AsyncIterator[None]:
    """One pass after the other, as in any process; afterwards it remembers what it has seen."""
    passes = asyncio.create_task(mill.reconciler.run())
    try:
        yield
    finally:
        await cancel_all([passes])


async def in_touch_with_a_job_that_runs(mill: Mill) -> str:
    """The reconciler has been in touch for more than a lease; then somebody claims a job."""
    job_id = await mill.accept(script("a"))
    await asyncio.sleep(LEASE_S + 0.5)
    assert await mill.database.write(claim, "chat", "a worker that is well", to_us(LEASE_S)) is not None
    return job_id


async def test_a_postgresql_that_was_read_only_for_longer_than_a_lease_costs_nobody_a_job(
    redis_url: str, migrated_postgres_url: str, namespace: str
) -> None:
    async with Mill(redis_url, migrated_postgres_url, namespace, **SETTINGS) as mill:
        async with reconciling(mill):
            job_id = await in_touch_with_a_job_that_runs(mill)
            await _set_read_only(migrated_postgres_url, "on")
            await asyncio.sleep(LEASE_S - 0.4)
        # The next pass happens to come just after the end of the outage, which was after that of the lease.
        await asyncio.sleep(0.4)
        await _set_read_only(migrated_postgres_url, "off")
        assert (await mill.reconciler.reconcile()).expired == 0
        assert await mill.transitions(job_id) == ["accept", "claim"]


async def test_a_sqlite_file_that_was_locked_for_longer_than_a_lease_costs_nobody_a_job(
    redis_url: str, sqlite_url: str, namespace: str
) -> None:
    async with Mill(redis_url, sqlite_url, namespace, **SETTINGS) as mill, reconciling(mill):
        job_id = await in_touch_with_a_job_that_runs(mill)
        somebody = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
        try:
            somebody.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(LEASE_S + 0.5)
            somebody.execute("ROLLBACK")
        finally:
            somebody.close()
        # Whoever waited for the lock has had it by now.
        await asyncio.sleep(0.5)
        assert await mill.transitions(job_id) == ["accept", "claim"]


async def test_the_reconciler_writes_to_a_sqlite_file_while_a_job_runs_and_leaves_it_in_peace_otherwise(
    redis_url: str, sqlite_url: str, namespace: str
) -> None:
    """Only a write of its own tells it that a disk is full."""
    somebody = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)

    def changes() -> int:
        (version,) = somebody.execute("PRAGMA data_version").fetchone()
        return int(version)

    try:
        async with Mill(redis_url, sqlite_url, namespace) as mill:
            await mill.accept(script("a"))
            await mill.reconciler.reconcile()
            before = changes()
            await mill.reconciler.reconcile()
            assert changes() == before
            assert await mill.database.write(claim, "chat", "a worker that is well", 60_000_000) is not None
            before = changes()
            await mill.reconciler.reconcile()
            assert changes() > before
    finally:
        somebody.close()


async def _set_read_only(url: str, value: str) -> None:
    name = make_url(url).database
    async with await psycopg.AsyncConnection.connect(url.replace("+psycopg", ""), autocommit=True) as admin:
        await admin.execute("SET default_transaction_read_only = off")
        await admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}'.encode())
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
