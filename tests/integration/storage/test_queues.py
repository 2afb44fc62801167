"""A paused queue starts nothing, and loses nothing."""

from __future__ import annotations

import asyncio

from sqlalchemy import Connection
from sqlalchemy.util import await_only

from storage import queues
from storage.clock import to_us
from storage.database import Database, open_database
from storage.jobs.claim import claim, has_job, has_work
from storage.jobs.reconcile import lapsed_jobs, overdue_lanes
from storage.jobs.settle import lapse
from storage.lanes import alone_lane
from storage.tables import jobs, paused_queues
from tests.integration.storage.acts import answer, ask, everything, job_row, pass_time, row, rows, take, try_claim
from tests.integration.storage.conftest import Shared
from tests.integration.storage.rules import check_rules


async def test_a_paused_queue_starts_nothing_and_the_others_go_on(database: Database) -> None:
    await ask(database, tenant="a")
    await ask(database, tenant="b")
    other = await ask(database, queue="bulk")
    await database.write(queues.pause, "chat", "maintenance")
    before = await everything(database)
    assert await try_claim(database) is None
    assert not await database.read(has_work, "chat")
    assert await everything(database) == before
    assert (await take(database, "bulk")).job_id == other.job_id
    await check_rules(database)


async def test_what_is_accepted_meanwhile_runs_in_its_turn_once_the_queue_is_resumed(database: Database) -> None:
    await database.write(queues.pause, "chat")
    accepted = [await ask(database) for _ in range(3)]
    assert await try_claim(database) is None
    assert await database.write(queues.resume, "chat")
    assert [(await take(database)).job_id for _ in range(3)] == [one.job_id for one in accepted]
    await check_rules(database)


async def test_what_runs_goes_on_and_hands_its_session_on(database: Database) -> None:
    first = await ask(database)
    second = await ask(database, session_id=first.session_id)
    claimed = await take(database)
    await database.write(queues.pause, "chat")
    await answer(database, claimed)
    assert await try_claim(database) is None
    assert (await job_row(database, second.job_id))["head"]
    await database.write(queues.resume, "chat")
    assert (await take(database)).job_id == second.job_id


async def test_deadlines_go_on_passing(database: Database) -> None:
    accepted = await ask(database, deadline_s=2)
    await database.write(queues.pause, "chat")
    await database.write(pass_time, 3)
    (stale,) = await database.read(lapsed_jobs, 10)
    await database.write(lapse, stale.job_id, stale.epoch)
    assert (await job_row(database, accepted.job_id))["error_code"] == "deadline"


async def test_nobody_is_rung_for_a_paused_queue(database: Database) -> None:
    await ask(database)
    await ask(database, queue="bulk")
    await database.write(pass_time, 5)
    await database.write(queues.pause, "chat")
    assert await database.read(overdue_lanes, to_us(1), 10) == {"bulk": 1}
    await database.write(queues.resume, "chat")
    assert await database.read(overdue_lanes, to_us(1), 10) == {"bulk": 1, "chat": 1}


async def test_the_lane_of_jobs_that_run_alone_is_paused_with_its_queue(database: Database) -> None:
    accepted = await ask(database)
    lane = alone_lane("chat")

    def isolate(connection: Connection) -> None:
        connection.execute(jobs.update().values(lane=lane))
        queues.pause(connection, "chat")

    await database.write(isolate)
    await database.write(lambda c: c.exec_driver_sql(f"UPDATE lanes SET lane = '{lane}'"))
    assert not await database.read(has_job, lane)
    assert await try_claim(database, lane) is None
    await database.write(queues.resume, "chat")
    assert await database.read(has_job, lane)
    assert (await take(database, lane)).job_id == accepted.job_id


async def test_a_queue_that_is_paused_already_keeps_its_reason(database: Database) -> None:
    await database.write(queues.pause, "chat", "first")
    before = await row(database, paused_queues)
    await database.write(queues.pause, "chat", "second")
    assert await database.read(queues.paused) == [before]
    assert before["reason"] == "first"


async def test_only_a_paused_queue_is_resumed(database: Database) -> None:
    assert not await database.write(queues.resume, "chat")
    await database.write(queues.pause, "chat")
    assert await database.write(queues.resume, "chat")
    assert not await database.write(queues.resume, "chat")


async def test_a_reason_is_cut_and_cleaned(database: Database) -> None:
    await database.write(queues.pause, "chat", "x\x00" + "y" * 500)
    reason = (await row(database, paused_queues))["reason"]
    assert len(reason) == 200
    assert "\x00" not in reason


async def test_two_that_pause_at_once_do_it_once(database: Database, database_url: str) -> None:
    other = open_database(database_url)
    await asyncio.gather(*(one.write(queues.pause, "chat", "why") for one in (database, other) * 4))
    assert len(await rows(database, paused_queues)) == 1
    await other.close()


async def test_once_a_pause_is_committed_no_claim_begins(database: Database, database_url: str) -> None:
    """Claims race the pause; whatever is claimed was claimed before it was committed."""
    other = open_database(database_url)
    for _ in range(30):
        await ask(database)
    paused = asyncio.Event()
    late = 0

    async def claim_all() -> None:
        nonlocal late
        while True:
            begun_late = paused.is_set()
            if await try_claim(database) is None:
                return
            late += begun_late

    async def pause() -> None:
        while len(await rows(other, jobs, status="running")) < 3:
            pass
        await other.write(queues.pause, "chat")
        paused.set()

    async with asyncio.timeout(20):
        await asyncio.gather(claim_all(), pause())
    assert late == 0
    running = len(await rows(database, jobs, status="running"))
    assert 3 <= running < 30
    await other.close()
    await check_rules(database)


async def test_a_pause_does_not_wait_for_claims_under_way(postgres_database: Database, shared_postgres: Shared) -> None:
    other = open_database(shared_postgres.url)
    await ask(postgres_database)
    claimed, resume = asyncio.Event(), asyncio.Event()

    def claim_and_wait(connection: Connection) -> str | None:
        found = claim(connection, "chat", "w", to_us(15))
        claimed.set()
        await_only(resume.wait())
        return None if found is None else found.job_id

    claiming = asyncio.create_task(other.write(claim_and_wait))
    await claimed.wait()
    async with asyncio.timeout(5):
        await postgres_database.write(queues.pause, "chat")
    resume.set()
    assert await claiming is not None
    await other.close()
    await check_rules(postgres_database)
