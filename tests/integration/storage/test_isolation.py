"""A job that was lost twice in company runs once more alone, before it is given up."""

from __future__ import annotations

import json

from schemas.stream_event import ToolNote
from storage.database import Database
from storage.jobs.claim import Claim, has_job
from storage.jobs.lost import keep_shown, lost_attempt
from storage.jobs.reconcile import overdue_lanes
from storage.jobs.settle import cancel, expire, fail, release
from storage.jobs.statements import Recorded
from storage.lanes import alone_lane
from storage.queues import pause
from storage.tables import attempts, dead_letters, lanes
from tests.integration.storage.acts import (
    BROKEN,
    answer,
    ask,
    event_of,
    job_row,
    kinds,
    pass_time,
    row,
    rows,
    take,
    try_claim,
)
from tests.integration.storage.rules import check_rules

ALONE = alone_lane("chat")


async def lose(database: Database, *claims: Claim) -> list[Recorded]:
    """Their worker is gone: each of them expires, one after the other."""
    await database.write(pass_time, 20)
    return [await database.write(expire, claim.job_id, claim.epoch) for claim in claims]


async def isolated(database: Database, *, queue: str = "chat") -> str:
    """A job that has been lost twice with another one; returns its id."""
    job_id = (await ask(database, "poison", queue=queue, priority=1)).job_id
    for worker in ("w1", "w2"):
        await ask(database, "beside it", queue=queue)
        poison, other = await take(database, queue, worker), await take(database, queue, worker)
        assert poison.job_id == job_id
        await lose(database, poison)
        await answer(database, other)
    return job_id


async def test_a_job_lost_twice_in_company_goes_to_the_lane_of_those_that_run_alone(database: Database) -> None:
    job_id = await isolated(database)
    job = await job_row(database, job_id)
    assert (job["status"], job["lane"], job["queue"], job["failures"]) == ("queued", ALONE, "chat", 2)
    assert job["lost_in_company"] == 2
    assert await rows(database, dead_letters) == []
    assert await try_claim(database) is None, "the queue's own workers do not get it"
    assert await database.read(has_job, ALONE)
    alone = await take(database, ALONE, "w3")
    assert (alone.job_id, alone.attempt, alone.queue) == (job_id, 3, "chat")
    assert not await database.read(has_job, ALONE), "it runs: nobody else is to start a process for it"
    await answer(database, alone)
    assert (await job_row(database, job_id))["status"] == "finished"
    assert not await database.read(has_job, ALONE)
    await check_rules(database)


async def test_a_neighbour_that_expired_first_is_company_for_the_last_one(database: Database) -> None:
    names = [(await ask(database, str(place))).job_id for place in range(2)]
    for worker in ("w1", "w2"):
        first, second = await take(database, worker=worker), await take(database, worker=worker)
        await lose(database, first, second)
    assert [(await job_row(database, name))["lane"] for name in names] == [ALONE, ALONE]
    await check_rules(database)


async def test_nobody_is_rung_for_a_job_that_runs_alone(database: Database) -> None:
    job_id = (await ask(database, "poison", priority=1)).job_id
    for worker in ("w1", "w2"):
        await ask(database, "beside it")
        poison, other = await take(database, worker=worker), await take(database, worker=worker)
        (recorded,) = await lose(database, poison)
        await answer(database, other)
    assert recorded.job_id == job_id
    assert (recorded.wakes, recorded.kind) == (None, "expire")
    assert (await event_of(database, recorded))["kind"] == "retrying"
    await database.write(pass_time, 20)
    assert await database.read(overdue_lanes, 0, 100) == {}


async def test_a_job_that_was_alone_each_time_it_was_lost_dies_at_the_second(database: Database) -> None:
    job_id = (await ask(database)).job_id
    for worker in ("w1", "w2"):
        await lose(database, await take(database, worker=worker))
    job = await job_row(database, job_id)
    assert (job["status"], job["lost_in_company"]) == ("dead", 0)
    assert (await row(database, dead_letters))["error_code"] == "worker_lost"


async def test_a_job_lost_once_alone_and_once_in_company_dies_at_the_second(database: Database) -> None:
    job_id = (await ask(database, priority=1)).job_id
    await lose(database, await take(database, worker="w1"))
    await ask(database)
    again, other = await take(database, worker="w2"), await take(database, worker="w2")
    await lose(database, again)
    await answer(database, other)
    assert (await job_row(database, job_id))["status"] == "dead"


async def test_an_error_and_a_loss_in_company_are_two_failures(database: Database) -> None:
    for order in ("error first", "loss first"):
        job_id = (await ask(database, order, priority=1)).job_id
        for turn in range(2):
            await ask(database, "beside it")
            claimed, other = await take(database, worker=order), await take(database, worker=order)
            assert claimed.job_id == job_id
            if (turn == 0) is (order == "error first"):
                await database.write(fail, job_id, claimed.epoch, BROKEN, delay_us=0)
            else:
                await lose(database, claimed)
            await answer(database, other)
        assert (await job_row(database, job_id))["status"] == "dead"


async def test_other_jobs_of_other_workers_are_no_company(database: Database) -> None:
    job_id = (await ask(database, priority=1)).job_id
    await ask(database)
    for worker in ("w1", "w2"):
        mine = await take(database, worker=worker)
        if worker == "w1":
            await take(database, worker="well")
        await lose(database, mine)
    assert (await job_row(database, job_id))["status"] == "dead"


async def test_a_job_that_is_lost_alone_is_dead_and_its_letter_says_so(database: Database) -> None:
    job_id = await isolated(database)
    (recorded,) = await lose(database, await take(database, ALONE, "w3"))
    assert await kinds(database, job_id) == ["accept", *["claim", "expire"] * 3]
    assert (await event_of(database, recorded))["kind"] == "failed"
    letter = await row(database, dead_letters)
    assert letter["error_code"] == "worker_lost"
    assert "alone" in letter["error"]["message"]
    assert [attempt["ending"] for attempt in await rows(database, attempts, job_id=job_id)] == ["expire"] * 3
    await check_rules(database)


async def test_an_error_of_a_job_that_runs_alone_is_its_last(database: Database) -> None:
    job_id = await isolated(database)
    claimed = await take(database, ALONE, "w3")
    await database.write(fail, job_id, claimed.epoch, BROKEN, delay_us=0)
    assert (await job_row(database, job_id))["status"] == "dead"


async def test_a_job_that_is_released_or_deferred_while_it_runs_alone_stays_in_its_lane(database: Database) -> None:
    job_id = await isolated(database)
    claimed = await take(database, ALONE, "w3")
    released = await database.write(release, job_id, claimed.epoch)
    assert (released.kind, released.wakes) == ("release", None)
    claimed = await take(database, ALONE, "w4")
    deferred = await database.write(fail, job_id, claimed.epoch, BROKEN, delay_us=0, charged=False)
    assert (deferred.kind, deferred.wakes) == ("defer", None)
    job = await job_row(database, job_id)
    assert (job["status"], job["lane"], job["failures"]) == ("queued", ALONE, 2)
    await check_rules(database)


async def test_each_queue_has_a_lane_of_its_own_for_them_and_no_lane_is_left_running(database: Database) -> None:
    job_id = await isolated(database, queue="night")
    assert await try_claim(database, ALONE) is None
    assert (await take(database, alone_lane("night"))).job_id == job_id
    assert {lane["lane"]: lane["running"] for lane in await rows(database, lanes)} == {"night": 0, "night.alone": 1}


async def test_the_next_job_of_a_session_runs_in_company_when_the_isolated_one_has_ended(database: Database) -> None:
    first = await ask(database, "poison", priority=1)
    behind = await ask(database, "behind it", session_id=first.session_id)
    for worker in ("w1", "w2"):
        await ask(database, "beside it")
        poison, other = await take(database, worker=worker), await take(database, worker=worker)
        await lose(database, poison)
        await answer(database, other)
    assert await try_claim(database) is None, "the session waits for its turn"
    recorded = await answer(database, await take(database, ALONE, "w3"))
    assert recorded.wakes == "chat"
    assert (await take(database)).job_id == behind.job_id


async def test_what_a_lost_attempt_had_shown_is_kept_once_and_only_when_it_is_over(database: Database) -> None:
    tools: list[ToolNote] = [{"id": "c1", "name": "clock", "status": "started", "args": {"zone": "UTC"}}]
    job_id = (await ask(database)).job_id
    claimed = await take(database)
    assert not await database.write(keep_shown, job_id, 1, "too early", tools)
    (recorded,) = await lose(database, claimed)
    lost = await database.read(lost_attempt, job_id, recorded.epoch)
    assert lost is not None
    assert (lost.attempt, lost.epoch) == (1, claimed.epoch)
    following = await take(database)
    assert await database.read(lost_attempt, job_id, recorded.epoch) == lost, "the next attempt is another one"
    assert await database.write(keep_shown, job_id, lost.attempt, "half", tools)
    assert not await database.write(keep_shown, job_id, lost.attempt, "other", [])
    kept, running = await rows(database, attempts, job_id=job_id)
    assert (kept["shown_text"], json.loads(json.dumps(kept["shown_tools"]))) == ("half", tools)
    assert (running["attempt"], running["shown_text"]) == (following.attempt, None)


async def test_no_process_is_started_for_a_job_that_is_not_due_or_was_cancelled(database: Database) -> None:
    job_id = await isolated(database)
    claimed = await take(database, ALONE, "w3")
    await database.write(fail, job_id, claimed.epoch, BROKEN, delay_us=60_000_000, charged=False)
    assert not await database.read(has_job, ALONE)
    await database.write(pass_time, 70)
    assert await database.read(has_job, ALONE)
    await database.write(cancel, job_id, claimed.epoch + 1, "enough")
    assert not await database.read(has_job, ALONE)


async def test_a_pause_of_the_queue_holds_for_its_jobs_that_run_alone(database: Database) -> None:
    await isolated(database)
    await database.write(pause, "chat", "maintenance")
    assert not await database.read(has_job, ALONE)
    assert await try_claim(database, ALONE) is None
