"""Bulk runs, item by item: each is dealt with once, by one holder, until the run is finished or aborted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from schemas.errors import NotFound
from storage.bulk_runs import (
    LEASE_US,
    Held,
    LeaseLost,
    abort,
    finish,
    get_run,
    hold,
    list_runs,
    next_items,
    preview,
    skip,
    start,
    step,
    unheld,
)
from storage.database import Database
from storage.jobs.cancel import request_cancel
from storage.jobs.redrive import redrive
from storage.tables import bulk_runs, dead_letters
from tests.integration.storage.acts import TENANT, ask, die, everything, job_row, row, rows, take


async def begin(database: Database, action: str = "redrive", tenant: str = TENANT, **wanted: Any) -> str:
    """A new run; its id."""
    return str((await database.write(start, tenant, action, wanted))["id"])


async def held(database: Database) -> Held:
    """The one run that nobody works on, held."""
    (run,) = await database.read(unheld, 10)
    return replace(run, lease_until=await database.write(hold, run))


async def work_off(database: Database, run: Held) -> Held:
    """All that is left of a run, but for saying so."""
    while items := await database.read(next_items, run, 2):
        for item in items:
            done = await database.write(step, run, item)
            run = replace(run, cursor=item, lease_until=done.lease_until)
    return run


async def test_a_preview_counts_and_changes_nothing(database: Database) -> None:
    ids = [(await die(database))[0] for _ in range(3)]
    await die(database, tenant="other")
    before = await everything(database)
    assert await database.read(preview, TENANT, "redrive", {}, 2) == (3, sorted(ids)[:2])
    assert await database.read(preview, TENANT, "discard", {"error_code": "none"}, 2) == (0, [])
    assert await everything(database) == before


@pytest.mark.parametrize("action", ["redrive", "discard"])
async def test_every_letter_that_meets_the_filter_is_decided_about(database: Database, action: str) -> None:
    ids = [(await die(database))[0] for _ in range(5)]
    other, _, _ = await die(database, queue="bulk")
    foreign, _, _ = await die(database, tenant="other")
    run_id = await begin(database, action, queue="chat")
    run = await work_off(database, await held(database))
    await database.write(finish, run)
    ended = await database.read(get_run, TENANT, run_id)
    assert (ended["state"], ended["total"], ended["done"], ended["skipped"]) == ("finished", 5, 5, 0)
    assert ended["ended_at"] is not None
    for letter in await rows(database, dead_letters):
        expected = None if letter["id"] in (other, foreign) else {"redrive": "redriven", "discard": "discarded"}[action]
        assert letter["resolution"] == expected
    assert len(ids) == 5


async def test_what_comes_after_the_beginning_is_not_touched(database: Database) -> None:
    await die(database)
    await begin(database)
    late, _, _ = await die(database)
    run = await work_off(database, await held(database))
    await database.write(finish, run)
    assert (await row(database, dead_letters, id=late))["resolution"] is None


async def test_what_somebody_else_decided_meanwhile_is_skipped(database: Database) -> None:
    letters = sorted([(await die(database))[0] for _ in range(4)])
    run_id = await begin(database)
    run = await held(database)
    items = await database.read(next_items, run, 10)
    assert items == letters
    await database.write(redrive, TENANT, letters[1])
    for item in items[:3]:
        done = await database.write(step, run, item)
        assert done.done is (item != letters[1])
        run = replace(run, cursor=item, lease_until=done.lease_until)
    await database.write(redrive, TENANT, letters[3])
    assert (await database.read(get_run, TENANT, run_id))["skipped"] == 1
    run = await work_off(database, run)
    await database.write(finish, run)
    ended = await database.read(get_run, TENANT, run_id)
    assert (ended["done"], ended["skipped"]) == (2, 2), "also what was not met any more"


async def test_of_two_holders_only_one_gets_on(database: Database) -> None:
    letter_id, job_id, _ = await die(database)
    await begin(database)
    (seen,) = await database.read(unheld, 10)
    run = replace(seen, lease_until=await database.write(hold, seen))
    with pytest.raises(LeaseLost):
        await database.write(hold, seen)
    assert await database.read(unheld, 10) == []
    with pytest.raises(LeaseLost):
        await database.write(step, seen, letter_id)
    assert (await job_row(database, job_id))["status"] == "dead", "the item was rolled back with it"
    await database.write(step, run, letter_id)


async def test_a_run_whose_holder_died_is_gone_on_with_from_its_cursor(database: Database) -> None:
    letters = sorted([(await die(database))[0] for _ in range(3)])
    await begin(database)
    run = await held(database)
    await database.write(step, run, letters[0])
    assert await database.read(unheld, 10) == []
    await database.write(lambda c: c.execute(update(bulk_runs).values(lease_until=bulk_runs.c.lease_until - LEASE_US)))
    heir = await held(database)
    assert heir.cursor == letters[0]
    assert await database.read(next_items, heir, 10) == letters[1:]
    with pytest.raises(LeaseLost):
        await database.write(step, run, letters[1])


async def test_an_aborted_run_takes_no_further_item(database: Database) -> None:
    letters = sorted([(await die(database))[0] for _ in range(2)])
    run_id = await begin(database)
    run = await held(database)
    done = await database.write(step, run, letters[0])
    run = replace(run, cursor=letters[0], lease_until=done.lease_until)
    aborted = await database.write(abort, TENANT, run_id)
    assert (aborted["state"], aborted["done"]) == ("aborted", 1)
    with pytest.raises(LeaseLost):
        await database.write(step, run, letters[1])
    with pytest.raises(LeaseLost):
        await database.write(hold, run)
    with pytest.raises(LeaseLost):
        await database.write(finish, run)
    assert (await row(database, dead_letters, id=letters[1]))["resolution"] is None
    assert await database.write(abort, TENANT, run_id) == aborted, "twice is as good as once"


async def test_a_run_over_nothing_is_finished_at_once(database: Database) -> None:
    run = await database.write(start, TENANT, "redrive", {})
    assert (run["state"], run["total"]) == ("finished", 0)
    assert run["ended_at"] is not None
    assert await database.read(unheld, 10) == []


async def test_an_item_that_cannot_be_dealt_with_does_not_come_again(database: Database) -> None:
    letter_id, _, _ = await die(database)
    run_id = await begin(database)
    run = await held(database)
    lease_until = await database.write(skip, run, letter_id)
    assert lease_until > run.lease_until, "a token is never given out twice"
    assert await database.read(next_items, replace(run, cursor=letter_id), 10) == []
    assert (await database.read(get_run, TENANT, run_id))["skipped"] == 1


async def test_jobs_are_cancelled_by_filter_in_every_state(database: Database) -> None:
    running = await ask(database)
    await take(database)
    queued = await ask(database)
    other = await ask(database, queue="bulk")
    foreign = await ask(database, tenant="other")
    ended = await ask(database)
    assert await database.read(preview, TENANT, "cancel", {"status": "running"}, 9) == (1, [running.job_id])
    run_id = str((await database.write(start, TENANT, "cancel", {"queue": "chat"}, reason="enough", rate=5.0))["id"])
    await answer_queued(database, ended.job_id)
    late = await ask(database)
    run = await held(database)
    stopping = []
    while items := await database.read(next_items, run, 1):
        done = await database.write(step, run, items[0])
        stopping.append(done.stopping)
        run = replace(run, cursor=items[0], lease_until=done.lease_until)
    await database.write(finish, run)
    assert (await job_row(database, queued.job_id))["status"] == "cancelled"
    flagged = await job_row(database, running.job_id)
    assert (flagged["status"], flagged["cancel_reason"]) == ("running", "enough")
    assert [job for job in stopping if job] == [running.job_id]
    for untouched in (other, foreign, late):
        assert (await job_row(database, untouched.job_id))["status"] == "queued"
    told = await database.read(get_run, TENANT, run_id)
    assert (told["total"], told["done"], told["skipped"], told["reason"], told["rate"]) == (3, 2, 1, "enough", 5.0)


async def answer_queued(database: Database, job_id: str) -> None:
    """End a job that may not be the next in its queue."""
    await database.write(request_cancel, TENANT, job_id, "by hand")


async def test_runs_are_listed_newest_first_and_are_their_tenants_own(database: Database) -> None:
    await die(database)
    await die(database, tenant="other")
    ids = [await begin(database), await begin(database, "discard")]
    foreign = await begin(database, tenant="other")
    found = await database.read(list_runs, TENANT, limit=10)
    assert [run["id"] for run in found] == ids[::-1]
    assert [run["id"] for run in await database.read(list_runs, TENANT, limit=10, before=ids[1])] == [ids[0]]
    assert await database.read(list_runs, TENANT, limit=10, state="aborted") == []
    with pytest.raises(NotFound, match="there is no such bulk run"):
        await database.read(get_run, TENANT, foreign)
    with pytest.raises(NotFound, match="there is no such bulk run"):
        await database.write(abort, TENANT, foreign)
