"""The reconciler does what a crash or an outage kept somebody from doing, and no more."""

from __future__ import annotations

import asyncio

import pytest

from cli.valkey import Valkey
from storage.jobs.claim import claim
from storage.jobs.settle import rebuild
from tests.integration.workers.mill import Mill, caught_up, eventually
from tests.integration.workers.scripted import script, scripts
from workers import event_writer, reconciler, settlement
from workers.cancelling import cancel_all
from workers.ring import waiting_rings


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "RETRY_S", (0.01,))
    monkeypatch.setattr(settlement, "LOG_TIMEOUT_S", 0.2)
    monkeypatch.setattr(reconciler, "RING_PATIENCE_S", 0.0)
    monkeypatch.setattr(reconciler, "PATIENCE_S", 0.0)


async def test_the_event_of_a_rebuild_is_appended_by_nobody_but_its_writer(own_mill: Mill) -> None:
    job_id = await own_mill.accept(script("a"))
    claimed = await own_mill.database.write(claim, "chat", "a worker that dies", 60_000_000)
    assert claimed is not None
    await own_mill.database.write(rebuild, job_id, claimed.epoch, "what was shown", [])
    await own_mill.redis.flushall()
    await own_mill.reconciler.reconcile()
    assert await own_mill.kinds(job_id) == []


async def test_a_lost_ring_is_rung_again(own_mill: Mill) -> None:
    jobs = [await own_mill.accept(script(str(place))) for place in range(3)]
    await own_mill.redis.flushall()
    assert (await own_mill.reconciler.reconcile()).rung == 3
    assert (await own_mill.reconciler.reconcile()).rung == 0, "the rings that wait are enough"
    await own_mill.desk.look()
    assert [await own_mill.status(job_id) for job_id in jobs] == ["finished"] * 3


async def test_a_job_that_waits_for_its_session_or_its_due_time_is_not_rung_for(
    own_valkey: Valkey, sqlite_url: str, namespace: str
) -> None:
    async with Mill(own_valkey.url, sqlite_url, namespace, retry_delay_s=60) as own_mill:
        first = await own_mill.answer(script(("raise", "own")))
        session_id = (await own_mill.job(first))["session_id"]
        await own_mill.accept(script("behind it"), session_id=session_id)
        await own_mill.redis.flushall()
        assert (await own_mill.reconciler.reconcile()).rung == 0


async def test_the_worker_whose_attempt_failed_rings_when_the_retry_is_due(
    own_valkey: Valkey, sqlite_url: str, namespace: str
) -> None:
    async with Mill(own_valkey.url, sqlite_url, namespace, retry_delay_s=0.05) as own_mill:
        job_id = await own_mill.answer(scripts(a1=[("raise", "own")], a2=["b"]))

        async def rung() -> bool:
            return await waiting_rings(own_mill.redis, namespace, "chat") == 2  # the first is of its acceptance

        await eventually(rung)
        await own_mill.desk.look()
        assert await own_mill.status(job_id) == "finished"


async def test_events_of_an_outage_longer_than_the_reconciler_looks_back_are_not_forgotten(
    own_mill: Mill, own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "LOOK_BACK_S", 0.05)
    monkeypatch.setattr(reconciler, "SETTLE_S", 0.05)
    await own_valkey.kill()
    await own_mill.reconciler.reconcile()  # a worker that has started into the outage
    job_id = await own_mill.answer(script("a"))
    ended_at = (await own_mill.job(job_id))["ended_at"]

    async def long_after() -> bool:
        await own_mill.reconciler.reconcile()
        return await own_mill.now_us() - int(ended_at) > 200_000

    await eventually(long_after)
    await own_valkey.start()
    assert await caught_up(own_mill, job_id) == ["final"]


async def test_two_reconcilers_append_and_ring_no_more_than_one(
    own_valkey: Valkey, own_mill: Mill, sqlite_url: str, namespace: str
) -> None:
    async with Mill(own_valkey.url, sqlite_url, namespace) as other:
        await own_valkey.kill()
        jobs = [await own_mill.answer(script(str(place))) for place in range(5)]
        await own_valkey.start()

        async def all_told() -> bool:
            await asyncio.gather(own_mill.reconciler.reconcile(), other.reconciler.reconcile())
            return all([await own_mill.kinds(job_id) for job_id in jobs])

        await eventually(all_told)
        await asyncio.gather(own_mill.reconciler.reconcile(), other.reconciler.reconcile())
        assert [await own_mill.kinds(job_id) for job_id in jobs] == [["final"]] * 5


async def test_writes_that_stall_end_the_trust_in_leases_that_look_past(
    redis_url: str, database_url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where commits stall, workers that are well cannot renew either."""
    async with Mill(redis_url, database_url, namespace, lease_s=0.2, lease_renew_s=0.1) as mill:
        jobs = [await mill.accept(script(str(place))) for place in range(2)]
        for _ in jobs:
            await mill.database.write(claim, "chat", "a worker that dies", 1)
        monkeypatch.setattr(reconciler, "SLOW_WRITE_S", -1.0)

        async def expired() -> bool:
            return (await mill.reconciler.reconcile()).expired == 1

        await eventually(expired)
        assert (await mill.reconciler.reconcile()).expired == 0
        monkeypatch.setattr(reconciler, "SLOW_WRITE_S", 60.0)
        await eventually(expired)
        assert [await mill.status(job_id) for job_id in jobs] == ["queued", "queued"]


async def test_a_pass_that_runs_out_of_time_leaves_the_rest_to_the_next_which_comes_at_once(
    lite_mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "TRANSITIONS_S", 0.0)
    jobs = [await lite_mill.accept("hello", deadline_s=0.001) for _ in range(5)]
    done = await lite_mill.reconciler.reconcile()
    assert done.lapsed < len(jobs)
    running = asyncio.create_task(lite_mill.reconciler.run())
    assert [(await lite_mill.ended(job_id))["error_code"] for job_id in jobs] == ["deadline"] * len(jobs)
    await cancel_all([running])
