"""A worker keeps the jobs it works on, whatever its handlers do, and loses those it has let go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from storage.jobs.claim import claim
from storage.jobs.lease import renew
from storage.tables import jobs, messages
from tests.integration.workers.mill import Mill, eventually, file_appears, running, settled
from tests.integration.workers.scripted import script, scripts
from workers import leases


async def test_a_handler_that_blocks_the_loop_costs_its_neighbours_nothing(
    redis_url: str, database_url: str, namespace: str, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    async with (
        Mill(redis_url, database_url, namespace, lease_s=0.6, lease_renew_s=0.1) as mill,
        Mill(redis_url, database_url, namespace, lease_s=0.6, lease_renew_s=0.1) as watcher,
    ):
        mill.renew_leases()
        neighbour = await mill.accept(script("a", ("touch", str(begun)), ("until", str(tmp_path / "go")), "b"))
        looking = mill.looking()
        await file_appears(begun)
        blocker = await mill.accept(script(("block", 2.0), ("touch", str(tmp_path / "go")), "blocked"))

        watched: list[int] = []

        def watch() -> None:
            # Another process's reconciler, whose loop runs on while this one stands still.
            async def passes() -> None:
                other = Mill(redis_url, database_url, namespace, lease_s=0.6, lease_renew_s=0.1)
                async with other:
                    for _ in range(200):
                        watched.append((await other.reconciler.reconcile()).expired)
                        if await other.status(blocker) == "finished":
                            return
                        await asyncio.sleep(0.02)

            asyncio.run(passes())

        watching = asyncio.create_task(asyncio.to_thread(watch))
        await mill.desk.look()
        await settled(looking)
        await watching
        assert sum(watched) == 0
        assert len(watched) > 20
        assert await watcher.status(neighbour) == await watcher.status(blocker) == "finished"
        assert (await mill.fold(neighbour)).text == "ab"


async def test_a_lease_that_nobody_renews_lets_another_worker_have_the_job_and_fences_the_first(
    redis_url: str, database_url: str, namespace: str, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    async with (
        Mill(redis_url, database_url, namespace, lease_s=0.3, lease_renew_s=0.1) as zombie,
        Mill(redis_url, database_url, namespace, lease_s=0.3, lease_renew_s=0.1) as other,
    ):
        job_id = await zombie.accept(
            scripts(a1=["zombie", ("touch", str(begun)), ("until", str(go)), " speaks"], a2=["other"])
        )
        looking = zombie.looking()
        await file_appears(begun)

        async def expired() -> bool:
            return (await other.reconciler.reconcile()).expired == 1

        await eventually(expired)
        await other.desk.look()
        go.touch()
        await settled(looking)
        assert await other.transitions(job_id) == ["accept", "claim", "expire", "claim", "finish"]
        assert (await other.fold(job_id)).text == "other"
        assert "speaks" not in str(await other.events(job_id))
        assert [row["content"] for row in await other.rows(messages, job_id=job_id, role="assistant")] == ["other"]
        assert (await other.attempts(job_id))[0]["error_class"] == "WorkerLost"


async def test_a_worker_that_has_just_started_calls_no_lease_past(
    redis_url: str, sqlite_url: str, namespace: str
) -> None:
    """After an outage of SQL every lease looks past."""
    async with Mill(redis_url, sqlite_url, namespace, lease_s=600) as mill:
        job_id = await mill.accept(script("a"))
        await mill.database.write(claim, "chat", "another worker", 1)
        for _ in range(3):
            assert (await mill.reconciler.reconcile()).expired == 0
        assert await mill.status(job_id) == "running"


async def test_the_lease_thread_tells_an_attempt_that_has_lost_its_job(
    redis_url: str, database_url: str, namespace: str, tmp_path: Path
) -> None:
    async with Mill(redis_url, database_url, namespace, lease_s=60, lease_renew_s=0.05) as mill:
        mill.renew_leases()
        job_id, looking = await running(mill, tmp_path, "a")
        await mill.database.write(
            lambda connection: connection.execute(jobs.update().where(jobs.c.id == job_id).values(attempt=2))
        )
        await settled(looking)
        assert await mill.transitions(job_id) == ["accept", "claim"]


async def test_leases_are_renewed_on_after_an_error_nobody_expected(
    redis_url: str, sqlite_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RETRY_S", 0.05)
    failures = iter([ZeroDivisionError])

    def fails_once(*arguments: Any) -> Any:
        for failure in failures:
            raise failure
        return renew(*arguments)

    monkeypatch.setattr("workers.leases.renew", fails_once)
    async with Mill(redis_url, sqlite_url, namespace, lease_s=60, lease_renew_s=0.05) as mill:
        mill.renew_leases()
        job_id, looking = await running(mill, tmp_path, "a")
        await mill.cancel(job_id)
        await settled(looking)
        assert await mill.status(job_id) == "cancelled"
