"""Claim: which job is next, and what its attempt is given."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from sqlalchemy import Connection, delete, select, update

from storage.clock import to_us
from storage.database import Database, open_database
from storage.jobs.claim import claim, has_work
from storage.jobs.settle import fail
from storage.sessions import change_session
from storage.tables import attempts, job_bodies, jobs, lanes, messages, sessions, transitions
from tests.integration.storage.acts import (
    BROKEN,
    answer,
    ask,
    everything,
    job_row,
    kinds,
    pass_time,
    row,
    rows,
    take,
    try_claim,
)
from tests.integration.storage.rules import check_rules


async def test_nothing_is_claimed_where_nothing_is_due(database: Database) -> None:
    await ask(database, queue="bulk")
    before = await everything(database)
    assert await try_claim(database, "chat") is None
    assert await everything(database) == before


async def test_an_attempt_gets_all_it_needs(database: Database) -> None:
    accepted = await ask(database, "hello", system="be brief", metadata={"a": 1}, user_id="u", model="m")
    claimed = await take(database, worker="w1", lease_us=to_us(20))
    assert (claimed.job_id, claimed.session_id, claimed.tenant) == (accepted.job_id, accepted.session_id, "default")
    assert (claimed.epoch, claimed.attempt, claimed.failures) == (1, 1, 0)
    assert (claimed.user_message, claimed.history_leaf) == ("hello", None)
    assert (claimed.job.metadata, claimed.model, claimed.user_id) == ({"a": 1}, "m", "u")
    assert claimed.session["system"] == "be brief"
    job = await job_row(database, accepted.job_id)
    assert (job["status"], job["epoch"], job["worker"]) == ("running", 1, "w1")
    assert job["lease_until"] == claimed.claimed_at + to_us(20)
    assert job["started_at"] == claimed.claimed_at
    attempt = await row(database, attempts)
    assert (attempt["attempt"], attempt["epoch"], attempt["worker"], attempt["ended_at"]) == (1, 1, "w1", None)
    await check_rules(database)


async def test_the_started_event_is_returned_as_it_is_stored(database: Database) -> None:
    await ask(database)
    claimed = await take(database, worker="w1")
    stored = await row(database, transitions, epoch=1)
    assert stored["event"].encode() == claimed.recorded.event
    event = json.loads(stored["event"])
    assert (event["kind"], event["attempt"], event["worker"]) == ("started", 1, "w1")


async def test_a_job_is_claimed_once(database: Database) -> None:
    await ask(database)
    await take(database)
    assert await try_claim(database) is None
    assert (await row(database, lanes))["running"] == 1


async def test_higher_priority_goes_first_then_who_waited_longer(database: Database) -> None:
    ids = {}
    for name, priority in [("first", 0), ("second", 0), ("high", 5), ("low", -5)]:
        ids[(await ask(database, priority=priority)).job_id] = name
        await database.write(pass_time, 0.01)
    order = [ids[(await take(database)).job_id] for _ in range(4)]
    assert order == ["high", "first", "second", "low"]


async def test_a_fresh_job_goes_before_a_retry_of_its_priority_but_not_before_a_higher_one(database: Database) -> None:
    retried = await ask(database, priority=1)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0)
    await database.write(pass_time, 1)
    fresh = await ask(database, priority=1)
    lower = await ask(database, priority=0)
    assert [(await take(database)).job_id for _ in range(3)] == [fresh.job_id, retried.job_id, lower.job_id]


async def test_a_job_that_ran_keeps_its_rank_however_often_it_runs(database: Database) -> None:
    accepted = await ask(database, priority=-3)
    ranks = [(await job_row(database, accepted.job_id))["rank"]]
    for _ in range(3):
        claimed = await take(database)
        ranks.append((await job_row(database, accepted.job_id))["rank"])
        await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0, charged=False)
    assert ranks == [5, 6, 6, 6]


async def test_the_tenant_with_fewest_running_jobs_goes_first(database: Database) -> None:
    for tenant in ("busy", "busy", "busy", "calm"):
        await ask(database, tenant=tenant)
    served = [(await take(database)).tenant for _ in range(4)]
    assert served[1] != served[0], "the second claim serves the other tenant"
    assert Counter(served) == {"busy": 3, "calm": 1}


async def test_tenants_with_equally_many_running_jobs_take_turns(database: Database) -> None:
    for tenant in ("a", "b", "c") * 3:
        await ask(database, tenant=tenant)
    served = []
    for _ in range(9):
        claimed = await take(database)
        served.append(claimed.tenant)
        await answer(database, claimed)
        await database.write(pass_time, 0.01)
    assert [set(served[start : start + 3]) for start in (0, 3, 6)] == [{"a", "b", "c"}] * 3


async def test_a_full_lane_waits_and_the_others_do_not(database: Database) -> None:
    full = [await ask(database, tenant="full") for _ in range(2)]
    await database.write(limit, "full", 1)
    first = await take(database)
    assert first.job_id == full[0].job_id
    assert await try_claim(database) is None
    assert not await database.read(has_work, "chat")
    await ask(database, tenant="other")
    assert (await take(database)).tenant == "other"
    await answer(database, first)
    assert (await take(database)).job_id == full[1].job_id
    await check_rules(database)


def limit(connection: Connection, tenant: str, running: int) -> None:
    connection.execute(update(lanes).where(lanes.c.tenant == tenant).values(running_limit=running))


async def test_a_retry_waits_for_its_time(database: Database) -> None:
    accepted = await ask(database)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=to_us(90))
    assert await try_claim(database) is None
    await database.write(pass_time, 30)
    assert await try_claim(database) is None
    await database.write(pass_time, 60)
    again = await take(database)
    assert (again.job_id, again.epoch, again.attempt, again.failures) == (accepted.job_id, 3, 2, 1)


async def test_a_claim_that_finds_nothing_corrects_the_hint(database: Database) -> None:
    opened = await ask(database)
    first = await take(database)
    await ask(database, session_id=opened.session_id)  # not the head: due, but not runnable
    assert await database.read(has_work, "chat")
    assert await try_claim(database) is None
    assert (await row(database, lanes))["next_due"] is None
    assert not await database.read(has_work, "chat")
    await answer(database, first)
    assert (await row(database, lanes))["next_due"] is not None
    await check_rules(database)
    await take(database)


async def test_a_corrected_hint_is_the_time_of_the_next_retry(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=to_us(30))
    await database.write(spoil_hint)
    assert await try_claim(database) is None
    due_at = (await job_row(database, claimed.job_id))["due_at"]
    assert (await row(database, lanes))["next_due"] == due_at


def spoil_hint(connection: Connection) -> None:
    connection.execute(update(lanes).values(next_due=1))


async def test_wrong_hints_of_other_tenants_do_not_hide_a_job(database: Database) -> None:
    for number in range(20):
        tenant = f"idle{number}"
        await ask(database, tenant=tenant)
        await answer(database, await take(database))
    await database.write(spoil_hint)
    accepted = await ask(database, tenant="late")
    assert (await take(database)).job_id == accepted.job_id


async def test_a_job_past_its_deadline_is_left_to_the_reconciler(database: Database) -> None:
    late = await ask(database, deadline_s=5, priority=9)
    await database.write(pass_time, 6)
    assert await try_claim(database) is None
    assert (await row(database, lanes))["next_due"] is None, "it does not keep the hint in the past"
    good = await ask(database)
    assert (await take(database)).job_id == good.job_id
    assert (await job_row(database, late.job_id))["status"] == "queued"


async def test_only_the_first_unfinished_job_of_a_session_runs(database: Database) -> None:
    opened = await ask(database, "one")
    second = await ask(database, "two", session_id=opened.session_id, priority=9)
    first = await take(database)
    assert first.job_id == opened.job_id
    assert await try_claim(database) is None
    await answer(database, first)
    assert (await take(database)).job_id == second.job_id


async def test_a_session_waits_for_a_retry_too(database: Database) -> None:
    opened = await ask(database, "one")
    await ask(database, "two", session_id=opened.session_id)
    first = await take(database)
    await database.write(fail, first.job_id, first.epoch, BROKEN, delay_us=to_us(30))
    assert await try_claim(database) is None
    await database.write(pass_time, 30)
    assert (await take(database)).job_id == first.job_id


async def test_the_first_claim_places_the_user_message_under_the_active_leaf_of_that_moment(database: Database) -> None:
    opened = await ask(database, "one")
    second = await ask(database, "two", session_id=opened.session_id)
    assert not (await row(database, messages, content="two"))["placed"]
    await answer(database, await take(database), "first answer")
    leaf = (await row(database, messages, content="first answer"))["id"]
    claimed = await take(database)
    assert (claimed.job_id, claimed.history_leaf) == (second.job_id, leaf)
    placed = await row(database, messages, content="two")
    assert (placed["placed"], placed["parent_id"]) == (True, leaf)


async def test_a_later_claim_does_not_move_the_user_message(database: Database) -> None:
    opened = await ask(database, "one")
    await answer(database, await take(database), "first answer")
    question = (await row(database, messages, content="one"))["id"]
    leaf = (await row(database, messages, content="first answer"))["id"]
    await ask(database, "two", session_id=opened.session_id)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0)
    await database.write(change_session, "default", opened.session_id, {"active_leaf": question})
    assert (await take(database)).history_leaf == leaf
    assert (await row(database, sessions))["active_leaf"] == question


async def test_a_stored_job_of_a_newer_version_is_claimed_all_the_same(database: Database) -> None:
    accepted = await ask(database, "hello")

    def age(connection: Connection) -> None:
        body = connection.execute(select(job_bodies.c.body)).scalar_one()
        connection.execute(update(job_bodies).values(body={**body, "version": 2, "mood": "x"}))

    await database.write(age)
    claimed = await take(database)
    assert (claimed.job_id, claimed.job.message) == (accepted.job_id, "hello")


async def test_a_job_that_only_a_newer_version_can_read_waits_and_holds_up_nobody(database: Database) -> None:
    newer = await ask(database, "one")
    await database.write(pass_time, 1)
    other = await ask(database, "two")

    def age(connection: Connection) -> None:
        changed = {"message": None, "hologram": "one", "version": 2}
        connection.execute(update(job_bodies).where(job_bodies.c.job_id == newer.job_id).values(body=changed))

    await database.write(age)
    assert (await take(database)).job_id == other.job_id
    assert await try_claim(database) is None
    job = await job_row(database, newer.job_id)
    assert (job["status"], job["epoch"], job["attempt"]) == ("queued", 0, 0)
    assert (await row(database, lanes))["next_due"] == job["due_at"]
    await check_rules(database)
    await database.write(pass_time, 30)
    assert await try_claim(database) is None


async def test_a_lost_claim_leaves_no_trace(database: Database) -> None:
    await ask(database)
    before = await everything(database)

    def claim_and_break(connection: Connection) -> None:
        assert claim(connection, "chat", "w", to_us(15)) is not None
        raise KeyError

    with pytest.raises(KeyError):
        await database.write(claim_and_break)
    assert await everything(database) == before


async def test_every_job_is_claimed_once_by_many_workers_at_once(database: Database, database_url: str) -> None:
    accepted = {(await ask(database, tenant=f"t{number % 3}")).job_id for number in range(24)}
    others = [open_database(database_url) for _ in range(2)]
    try:
        claims = await asyncio.gather(
            *(try_claim(one, worker=f"w{number}") for number in range(10) for one in (database, *others))
        )
        taken = [claimed.job_id for claimed in claims if claimed is not None]
        assert len(taken) == len(set(taken))
        assert set(taken) == accepted
        await check_rules(database)
    finally:
        for other in others:
            await other.close()


async def test_a_job_that_vanished_under_its_lane_is_not_missed(database: Database) -> None:
    """A hint may outlive what it hinted at."""
    await ask(database)

    def vanish(connection: Connection) -> None:
        connection.execute(delete(jobs))

    await database.write(vanish)
    assert await try_claim(database) is None
    assert (await row(database, lanes))["next_due"] is None


async def test_a_claim_is_one_transition(database: Database) -> None:
    accepted = await ask(database)
    await take(database)
    assert await kinds(database, accepted.job_id) == ["accept", "claim"]
    assert len(await rows(database, transitions)) == 2
