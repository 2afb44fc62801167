"""Bulk runs through real stores: worked off at their pace, by whoever is alive, never twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import update

from cli.valkey import Valkey
from schemas.chat_job import DEFAULT_TENANT
from storage import bulk_runs as stored
from storage.clock import to_us
from storage.database import Database
from storage.redis_client import open_redis
from storage.tables import bulk_runs
from tests.integration.workers.flaky import AFTER, BEFORE, Flaky
from tests.integration.workers.mill import Mill, eventually, running, settled
from tests.integration.workers.scripted import script
from workers.bulk_runner import BulkRunner
from workers.cancelling import cancel_all
from workers.control import ControlListener

DIES = script(("raise", "useless"))


@asynccontextmanager
async def runner(mill: Mill, database: Database | None = None) -> AsyncIterator[BulkRunner]:
    """A process's runner, ended like one that is shut down."""
    one = BulkRunner(mill.settings, database or mill.database, mill.log, mill.producer)
    task = asyncio.create_task(one.run())
    try:
        yield one
    finally:
        await cancel_all([task])


async def dead_jobs(mill: Mill, count: int) -> list[str]:
    ids = [await mill.accept(DIES) for _ in range(count)]
    await mill.desk.look()
    for job_id in ids:
        assert await mill.status(job_id) == "dead"
    return ids


async def begin(mill: Mill, action: str = "redrive", **options: Any) -> str:
    return str((await mill.database.write(stored.start, DEFAULT_TENANT, action, {}, **options))["id"])


async def run_of(mill: Mill, run_id: str) -> dict[str, Any]:
    return await mill.database.read(stored.get_run, DEFAULT_TENANT, run_id)


async def ended(mill: Mill, run_id: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        run = await run_of(mill, run_id)
        return run if run["state"] != "running" else None

    run = await eventually(look)
    assert run is not None
    return run


async def test_everything_is_redriven_once_and_followers_are_told(mill: Mill) -> None:
    ids = await dead_jobs(mill, 7)
    run_id = await begin(mill)
    async with runner(mill), runner(mill):
        run = await ended(mill, run_id)
    assert (run["state"], run["done"], run["skipped"]) == ("finished", 7, 0)
    for job_id in ids:
        assert (await mill.transitions(job_id)).count("redrive") == 1
        assert (await mill.kinds(job_id))[-1] == "queued"
    await mill.desk.look()
    for job_id in ids:
        assert await mill.status(job_id) == "dead"
        assert await mill.kinds(job_id) == ["queued", "started", "failed"] * 2
        assert len(await mill.dead_letters(job_id)) == 2


async def test_the_rate_is_kept_and_an_abort_is_obeyed_at_once(lite_mill: Mill) -> None:
    ids = await dead_jobs(lite_mill, 6)
    run_id = await begin(lite_mill, rate=5.0)
    async with runner(lite_mill):

        async def some() -> bool:
            return bool((await run_of(lite_mill, run_id))["done"] >= 2)

        began = time.monotonic()
        await eventually(some)
        assert time.monotonic() - began >= 0.15, "one at once, the next after 0.2 s"
        aborted = await lite_mill.database.write(stored.abort, DEFAULT_TENANT, run_id)
        await asyncio.sleep(0.5)  # time in which two or three more would have been redriven
    redriven = [job_id for job_id in ids if await lite_mill.status(job_id) == "queued"]
    assert len(redriven) == aborted["done"] < 5
    assert (await run_of(lite_mill, run_id))["done"] == aborted["done"]


async def test_a_slow_run_keeps_its_lease_and_holds_up_no_other(lite_mill: Mill) -> None:
    await dead_jobs(lite_mill, 2)
    slow = await begin(lite_mill, "redrive", rate=0.01)
    quick = await begin(lite_mill, "discard")
    async with runner(lite_mill):
        assert (await ended(lite_mill, quick))["state"] == "finished"
        before = (await run_of(lite_mill, slow))["lease_until"]

        async def renewed() -> bool:
            return bool((await run_of(lite_mill, slow))["lease_until"] > before + to_us(0.3))

        await eventually(renewed)
        assert (await run_of(lite_mill, slow))["state"] == "running"


async def test_another_process_goes_on_where_one_died(mill: Mill) -> None:
    ids = await dead_jobs(mill, 6)
    run_id = await begin(mill, rate=20.0)
    async with runner(mill):

        async def begun() -> bool:
            return bool((await run_of(mill, run_id))["done"])

        await eventually(begun)
    # It let go of nothing, as one that was killed; time passes until its lease is past.
    past = update(bulk_runs).values(lease_until=bulk_runs.c.lease_until - stored.LEASE_US)
    await mill.database.write(lambda connection: connection.execute(past))
    async with runner(mill):
        run = await ended(mill, run_id)
    assert (run["done"], run["skipped"]) == (6, 0)
    for job_id in ids:
        assert (await mill.transitions(job_id)).count("redrive") == 1


async def test_running_jobs_are_told_to_stop(lite_mill: Mill, tmp_path: Path) -> None:
    job_id, looking = await running(lite_mill, tmp_path, "so far")
    listening = open_redis(lite_mill.settings.redis_url.get_secret_value(), socket_timeout=None)
    control = ControlListener(listening, lite_mill.settings.namespace, lite_mill.desk.cancel)
    task = asyncio.create_task(control.run())
    channel = f"{lite_mill.settings.namespace}:control"

    async def listens() -> bool:
        return bool((await lite_mill.redis.pubsub_numsub(channel))[0][1])

    await eventually(listens)
    run_id = await begin(lite_mill, "cancel", reason="enough")
    async with runner(lite_mill):
        assert (await ended(lite_mill, run_id))["done"] == 1
        await settled(looking)  # nobody renews its lease here: only the control message can have stopped it
    await cancel_all([task])
    await listening.aclose()
    assert await lite_mill.status(job_id) == "cancelled"


async def test_without_redis_a_run_goes_on_and_its_events_are_appended_later(
    own_mill: Mill, own_valkey: Valkey
) -> None:
    ids = await dead_jobs(own_mill, 3)
    run_id = await begin(own_mill)
    await own_valkey.stop()
    async with runner(own_mill):
        assert (await ended(own_mill, run_id))["done"] == 3
    await own_valkey.start()
    for job_id in ids:
        assert await own_mill.status(job_id) == "queued"

        async def told(job_id: str = job_id) -> bool:
            await own_mill.reconciler.reconcile()
            return (await own_mill.kinds(job_id))[-1:] == ["queued"]

        await eventually(told)


async def test_a_step_whose_reply_was_lost_is_not_taken_twice(lite_mill: Mill) -> None:
    ids = await dead_jobs(lite_mill, 3)
    run_id = await begin(lite_mill)
    lost = ("unheld", BEFORE), ("hold", AFTER), ("step", AFTER), ("next_items", BEFORE), ("step", BEFORE)
    database = Flaky(lite_mill.settings.sqlalchemy_url, *lost)
    past = update(bulk_runs).values(lease_until=0)

    async def look() -> bool:
        if (await run_of(lite_mill, run_id))["state"] != "running":
            return True
        # Each fault lets go of the run; its lease of some seconds need not be waited for.
        await lite_mill.database.write(lambda connection: connection.execute(past))
        return False

    async with runner(lite_mill, database) as one:

        async def woken() -> bool:
            one.wake()
            return await look()

        await eventually(woken)
    await database.close()
    assert database.lose == []
    run = await run_of(lite_mill, run_id)
    assert run["done"] == 3
    for job_id in ids:
        assert (await lite_mill.transitions(job_id)).count("redrive") == 1
