"""What a reconciler looks for."""

from __future__ import annotations

from storage.clock import to_us
from storage.database import Database
from storage.jobs.reconcile import Moved, Stale, expired_jobs, lapsed_jobs, moved_jobs, overdue_lanes
from storage.jobs.settle import fail, lapse
from storage.jobs.statements import read_clock
from storage.tables import transitions
from tests.integration.storage.acts import BROKEN, answer, ask, pass_time, rows, take


async def test_work_nobody_was_rung_for_is_counted_by_queue(database: Database) -> None:
    for queue, tenant in [("chat", "a"), ("chat", "a"), ("chat", "b"), ("bulk", "a")]:
        await ask(database, queue=queue, tenant=tenant)
    assert await database.read(overdue_lanes, to_us(2), 100) == {}
    await database.write(pass_time, 2)
    assert await database.read(overdue_lanes, to_us(2), 100) == {"bulk": 1, "chat": 3}
    assert await database.read(overdue_lanes, to_us(2), 2) == {"bulk": 1, "chat": 2}


async def test_what_cannot_run_is_not_overdue(database: Database) -> None:
    opened = await ask(database)
    claimed = await take(database)
    await ask(database, session_id=opened.session_id)
    await database.write(pass_time, 60)
    assert await database.read(overdue_lanes, 0, 100) == {}
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=to_us(30))
    assert await database.read(overdue_lanes, 0, 100) == {}
    await database.write(pass_time, 30)
    assert await database.read(overdue_lanes, 0, 100) == {"chat": 1}


async def test_leases_that_are_past_come_the_longest_past_first(database: Database) -> None:
    for _ in range(3):
        await ask(database)
    first = await take(database, lease_us=to_us(5))
    second = await take(database, lease_us=to_us(2))
    await take(database, lease_us=to_us(60))
    assert await database.read(expired_jobs, 10) == []
    await database.write(pass_time, 6)
    assert await database.read(expired_jobs, 10) == [
        Stale(second.job_id, second.epoch),
        Stale(first.job_id, first.epoch),
    ]
    assert await database.read(expired_jobs, 1) == [Stale(second.job_id, second.epoch)]


async def test_deadlines_that_passed_in_the_queue_are_found_and_lapse(database: Database) -> None:
    opened = await ask(database, deadline_s=5)
    behind = await ask(database, deadline_s=4, session_id=opened.session_id)
    await ask(database, deadline_s=60)
    running = await ask(database, deadline_s=3, priority=9)
    assert (await take(database)).job_id == running.job_id
    await database.write(pass_time, 6)
    found = await database.read(lapsed_jobs, 10)
    assert found == [Stale(behind.job_id, 0), Stale(opened.job_id, 0)]
    for stale in found:
        await database.write(lapse, stale.job_id, stale.epoch)
    assert await database.read(lapsed_jobs, 10) == []


async def test_jobs_that_moved_lately_come_with_their_newest_epoch(database: Database) -> None:
    old = await ask(database)
    since = await database.read(read_clock)
    claimed = await take(database)
    await answer(database, claimed)
    fresh = await ask(database)
    moved = await database.read(moved_jobs, since, 10)
    ended, queued = [(await rows(database, transitions, job_id=one.job_id))[-1] for one in (old, fresh)]
    expected = {Moved(old.job_id, 2, ended["at"]), Moved(fresh.job_id, 0, queued["at"])}
    assert set(moved) == expected
    assert [one.at for one in moved] == sorted(one.at for one in moved)
    assert await database.read(moved_jobs, since, 1) == moved[:1]
    assert await database.read(moved_jobs, since + to_us(60), 10) == []
