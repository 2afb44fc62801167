"""Breakers: a provider that fails job after job is left alone, and its jobs wait without being charged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Connection, bindparam, update
from sqlalchemy.util import await_only

from schemas.errors import NotFound
from storage import breakers
from storage.breakers import BreakerRules
from storage.clock import to_us
from storage.database import Database, open_database
from storage.jobs import claim as claim_module
from storage.jobs import hold_back
from storage.jobs.cancel import request_cancel
from storage.jobs.claim import Claim, claim
from storage.jobs.reconcile import lapsed_jobs
from storage.jobs.settle import expire, fail, lapse
from storage.tables import jobs
from tests.integration.storage.acts import (
    BROKEN,
    LEASE_US,
    TENANT,
    answer,
    ask,
    job_row,
    kinds,
    pass_time,
    rows,
    take,
)
from tests.integration.storage.conftest import Shared
from tests.integration.storage.rules import check_rules
from tests.integration.storage.test_cancel import until_someone_waits_for_a_lock

BREAKER = "provider/shaky"
#: The breaker of the model that is asked instead.
SPARE = "provider/spare"
RULES = BreakerRules(threshold=2, pause_us=to_us(4), longest_pause_us=to_us(10))
PROBE_US = to_us(30)


def breaker_of(framework: str, model: str | None) -> str | None:
    """What a worker believes that knows two breakers to be open."""
    return {"shaky": BREAKER, "spare": SPARE}.get(model or "")


async def careful(database: Database, lane: str = "chat") -> Claim | None:
    """A claim of a worker that knows of the breakers."""
    return await database.write(claim, lane, "careful", LEASE_US, breaker_of, PROBE_US)


async def failure(database: Database, job_id: str = "nobody", name: str = BREAKER) -> bool:
    return await database.write(breakers.record_failure, name, job_id, BROKEN, RULES)


async def break_open(database: Database, name: str = BREAKER) -> None:
    assert [await failure(database, name=name) for _ in range(RULES.threshold)] == [False, True]


async def breaker(database: Database, name: str = BREAKER) -> dict[str, Any]:
    found = {one["name"]: one for one in await database.read(breakers.list_breakers)}
    return found[name]


async def test_so_many_failures_in_a_row_open_it(database: Database) -> None:
    await break_open(database)
    found = await breaker(database)
    assert found["probe_at"] == found["opened_at"] + RULES.pause_us
    assert (found["failures"], found["held"], found["last_error"]["code"]) == (2, 0, "provider_error")


async def test_an_answer_between_failures_begins_the_count_anew(database: Database) -> None:
    assert not await failure(database)
    assert await database.write(breakers.record_success, BREAKER)
    assert await database.read(breakers.known) == {}
    assert not await failure(database)
    assert await database.read(breakers.known) == {BREAKER: False}


async def test_each_model_has_a_breaker_of_its_own(database: Database) -> None:
    assert not await failure(database)
    assert not await failure(database, name=SPARE)
    assert await database.read(breakers.known) == {BREAKER: False, SPARE: False}


async def test_jobs_that_meet_an_open_breaker_wait_uncharged_and_others_go_on(database: Database) -> None:
    held = [await ask(database, model="shaky", priority=9) for _ in range(3)]
    free = await ask(database, model="steady")
    await break_open(database)
    claimed = await careful(database)
    assert claimed is not None
    assert claimed.job_id == free.job_id
    assert await careful(database) is None
    probe_at = (await breaker(database))["probe_at"]
    for accepted in held:
        job = await job_row(database, accepted.job_id)
        assert (job["status"], job["epoch"], job["failures"], job["attempt"]) == ("queued", 0, 0, 0)
        assert (job["held_by"], job["due_at"]) == (BREAKER, probe_at)
        assert await kinds(database, accepted.job_id) == ["accept"]
    assert (await breaker(database))["held"] == 3
    await check_rules(database)


async def test_no_more_than_so_many_are_held_at_once_but_all_of_them_in_the_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = hold_back._ALIKE.limit(2)
    postpone = update(jobs).where(jobs.c.id.in_(few), jobs.c.status == "queued")
    values: dict[Any, Any] = {"due_at": bindparam("due"), "held_by": bindparam("holder")}
    monkeypatch.setattr(hold_back, "_POSTPONE_ALIKE", postpone.values(values))
    for _ in range(5):
        await ask(database, model="shaky")
    await break_open(database)
    assert await careful(database) is None
    assert (await breaker(database))["held"] == 5


async def test_only_jobs_of_the_same_model_and_tenant_are_held_with_it(database: Database) -> None:
    await ask(database, model="shaky")
    bystanders = [
        await ask(database, model="shaky", tenant="other"),
        await ask(database, model=None),
        await ask(database, model="shaky", queue="bulk"),
    ]
    await break_open(database)
    row = next(one for one in await rows(database, jobs, model="shaky", tenant=TENANT, queue="chat"))

    def hold_one(connection: Connection) -> None:
        job = connection.execute(jobs.select().where(jobs.c.id == row["id"])).one()
        hold_back.hold_back(connection, job, BREAKER, job.due_at + to_us(1), job.due_at + to_us(9))

    await database.write(hold_one)
    assert (await job_row(database, row["id"]))["held_by"] == BREAKER
    assert [(await job_row(database, one.job_id))["held_by"] for one in bystanders] == [None, None, None]


async def test_after_the_pause_one_job_tries_and_the_others_wait_for_it(database: Database) -> None:
    for _ in range(3):
        await ask(database, model="shaky")
    await break_open(database)
    assert await careful(database) is None
    await database.write(pass_time, 5)
    probe = await careful(database)
    assert probe is not None
    found = await breaker(database)
    assert (found["probe_job"], found["probe_at"]) == (probe.job_id, probe.claimed_at + PROBE_US)
    assert await careful(database) is None
    waiting = [one["due_at"] for one in await rows(database, jobs, status="queued")]
    assert waiting == [found["probe_at"]] * 2
    await check_rules(database)


async def test_a_claim_knows_whether_it_is_the_probe(database: Database) -> None:
    await ask(database, model="steady")
    await ask(database, model="shaky")
    await break_open(database)
    await database.write(pass_time, 5)
    claims = [await careful(database) for _ in range(2)]
    assert [(one.model, one.probes) for one in claims if one is not None] == [("steady", False), ("shaky", True)]


async def test_a_job_that_has_tried_lets_the_others_go_first(database: Database) -> None:
    """Or one that no provider can answer would be the probe for ever."""
    tried = await ask(database, model="shaky", priority=1)
    fresh = await ask(database, model="shaky")
    await break_open(database)
    await database.write(pass_time, 5)
    probe = await careful(database)
    assert probe is not None
    assert probe.job_id == tried.job_id
    assert await careful(database) is None
    await failure(database, probe.job_id)
    await database.write(fail, probe.job_id, probe.epoch, BROKEN, delay_us=0, charged=False)
    assert await careful(database) is None
    probe_at = (await breaker(database))["probe_at"]
    assert (await job_row(database, tried.job_id))["due_at"] == probe_at + hold_back.AFTER_OTHERS_US
    await database.write(pass_time, 9)
    assert await database.write(breakers.release_held, 10) == {"chat": 1}
    second = await careful(database)
    assert second is not None
    assert second.job_id == fresh.job_id, "though its priority is lower"


async def test_with_nobody_else_waiting_a_job_that_has_tried_tries_again(database: Database) -> None:
    tried = await ask(database, model="shaky")
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0)
    await break_open(database)
    assert await careful(database) is None
    await database.write(pass_time, 5)
    assert await careful(database) is None
    await database.write(pass_time, 3)
    again = await careful(database)
    assert again is not None
    assert (again.job_id, again.probes) == (tried.job_id, True)


async def test_two_tenants_at_once_send_one_probe(database: Database, database_url: str) -> None:
    other = open_database(database_url)
    for tenant in ("a", "b", "c", "d"):
        await ask(database, model="shaky", tenant=tenant)
    await break_open(database)
    await database.write(pass_time, 5)
    claims = await asyncio.gather(*(careful(one) for one in (database, other) * 2))
    assert len([one for one in claims if one is not None]) == 1
    assert len(await rows(database, jobs, status="running")) == 1
    await other.close()
    await check_rules(database)


async def test_a_probe_that_fails_makes_the_pause_twice_as_long_up_to_the_longest(database: Database) -> None:
    await break_open(database)
    pauses = []
    for _ in range(3):
        probe = await ask(database, model="shaky")
        await database.write(pass_time, 60)
        claimed = await careful(database)
        assert claimed is not None
        assert claimed.job_id == probe.job_id
        assert await failure(database, probe.job_id)
        found = await breaker(database)
        assert found["probe_job"] is None
        pauses.append(found["pause_us"])
        assert found["probe_at"] - found["updated_at"] == found["pause_us"]
        await answer(database, claimed)
    assert pauses == [to_us(8), to_us(10), to_us(10)]


async def test_a_failure_of_another_job_leaves_pause_and_probe_as_they_are(database: Database) -> None:
    await break_open(database)
    before = await breaker(database)
    assert await failure(database, "late")
    after = await breaker(database)
    assert {name: after[name] for name in ("opened_at", "probe_at", "pause_us", "probe_job")} == {
        name: before[name] for name in ("opened_at", "probe_at", "pause_us", "probe_job")
    }
    assert after["failures"] == 3


async def probing(database: Database) -> Claim:
    """A job that tries, and one that waits for what it finds."""
    for _ in range(2):
        await ask(database, model="shaky")
    await break_open(database)
    await database.write(pass_time, 5)
    probe = await careful(database)
    assert probe is not None
    assert await careful(database) is None
    return probe


async def test_a_probe_that_ends_without_a_word_of_the_provider_lets_another_one_try(database: Database) -> None:
    probe = await probing(database)
    await database.write(breakers.end_probe, BREAKER, "somebody else")
    assert await database.read(breakers.held_jobs, 10) == []
    await database.write(breakers.end_probe, BREAKER, probe.job_id)
    assert await database.write(breakers.release_held, 10) == {"chat": 1}
    second = await careful(database)
    assert second is not None
    assert (await breaker(database))["probe_job"] == second.job_id != probe.job_id


async def test_a_probe_that_is_never_heard_of_again_is_given_up_on(database: Database) -> None:
    probe = await probing(database)
    await database.write(pass_time, 31)
    second = await careful(database)
    assert second is not None
    assert second.job_id != probe.job_id


async def test_a_probe_whose_worker_was_lost_may_try_again_itself(database: Database) -> None:
    await ask(database, model="shaky")
    await break_open(database)
    await database.write(pass_time, 5)
    probe = await careful(database)
    assert probe is not None
    await database.write(pass_time, 16)
    await database.write(expire, probe.job_id, probe.epoch)
    again = await careful(database)
    assert again is not None, "nobody else is trying"
    assert (again.job_id, again.attempt) == (probe.job_id, 2)


async def test_who_was_held_is_due_once_the_breaker_closes(database: Database) -> None:
    for tenant in ("a", "a", "b"):
        await ask(database, model="shaky", tenant=tenant)
    await ask(database, model="shaky", queue="bulk")
    await break_open(database)
    assert await careful(database) is None
    assert await careful(database, "bulk") is None
    assert await database.write(breakers.release_held, 10) == {}
    await database.write(breakers.record_success, BREAKER)
    assert len(await database.read(breakers.held_jobs, 10)) == 4
    assert await database.write(breakers.release_held, 10) == {"chat": 3, "bulk": 1}
    assert await database.read(breakers.held_jobs, 10) == []
    assert [await take(database) for _ in range(3)]
    assert await take(database, "bulk")
    assert all(one["held_by"] is None for one in await rows(database, jobs))
    await check_rules(database)


async def test_two_that_let_go_at_once_do_not_get_into_each_others_way(database: Database, database_url: str) -> None:
    other = open_database(database_url)
    for number in range(12):
        await ask(database, model="shaky", tenant=f"t{number % 4}")
    await break_open(database)
    assert await careful(database) is None
    await database.write(breakers.record_success, BREAKER)
    counts = await asyncio.gather(*(one.write(breakers.release_held, 100) for one in (database, other)))
    assert sum(count.get("chat", 0) for count in counts) == 12
    await other.close()
    await check_rules(database)


async def test_a_breaker_is_reset_by_hand(database: Database) -> None:
    await ask(database, model="shaky")
    await break_open(database)
    assert await careful(database) is None
    await database.write(breakers.reset, BREAKER)
    assert await database.read(breakers.list_breakers) == []
    assert await database.write(breakers.release_held, 10) == {"chat": 1}
    assert await careful(database) is not None
    with pytest.raises(NotFound):
        await database.write(breakers.reset, BREAKER)


async def test_a_worker_that_believes_a_closed_breaker_open_claims_all_the_same(database: Database) -> None:
    await ask(database, model="shaky")
    assert not await failure(database)
    assert await careful(database) is not None


async def test_the_second_attempt_meets_the_breaker_of_the_fallback(database: Database) -> None:
    first = await ask(database, model="shaky", fallback_model="spare")
    claimed = await take(database)
    assert claimed.model == "shaky"
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0)
    await break_open(database)
    second = await careful(database)
    assert second is not None
    assert (second.job_id, second.model) == (first.job_id, "spare")
    await database.write(fail, second.job_id, second.epoch, BROKEN, delay_us=0, charged=False)
    await break_open(database, SPARE)
    assert await careful(database) is None
    assert (await job_row(database, first.job_id))["held_by"] == SPARE


async def test_a_session_keeps_its_order_while_its_head_is_held(database: Database) -> None:
    first = await ask(database, model="shaky")
    later = await ask(database, session_id=first.session_id, model="steady")
    await break_open(database)
    assert await careful(database) is None
    await database.write(breakers.record_success, BREAKER)
    await database.write(breakers.release_held, 10)
    claimed = await careful(database)
    assert claimed is not None
    assert claimed.job_id == first.job_id
    await answer(database, claimed)
    assert (await take(database)).job_id == later.job_id
    await check_rules(database)


async def test_a_held_job_lapses_at_its_deadline(database: Database) -> None:
    accepted = await ask(database, model="shaky", deadline_s=2)
    await break_open(database)
    assert await careful(database) is None
    await database.write(pass_time, 3)
    (stale,) = await database.read(lapsed_jobs, 10)
    await database.write(lapse, stale.job_id, stale.epoch)
    job = await job_row(database, accepted.job_id)
    assert (job["status"], job["error_code"], job["held_by"]) == ("dead", "deadline", None)
    assert (await breaker(database))["held"] == 0
    await check_rules(database)


async def test_a_held_job_is_cancelled_at_once(database: Database) -> None:
    accepted = await ask(database, model="shaky")
    await break_open(database)
    assert await careful(database) is None
    assert (await database.write(request_cancel, TENANT, accepted.job_id, "user")).result == "cancelled"
    assert (await breaker(database))["held"] == 0
    await check_rules(database)


async def test_a_claim_that_meets_a_breaker_as_it_closes_runs_the_job(
    postgres_database: Database, shared_postgres: Shared
) -> None:
    """Between two looks of one claim somebody else may probe, be answered and close it."""
    other = open_database(shared_postgres.url)
    accepted = await ask(postgres_database, model="shaky")
    await break_open(postgres_database)
    await postgres_database.write(pass_time, 5)
    closed, resume = asyncio.Event(), asyncio.Event()

    def close_and_wait(connection: Connection) -> None:
        breakers.record_success(connection, BREAKER)
        closed.set()
        await_only(resume.wait())

    closing = asyncio.create_task(other.write(close_and_wait))
    await closed.wait()
    claiming = asyncio.create_task(careful(postgres_database))
    await until_someone_waits_for_a_lock(postgres_database)
    resume.set()
    await closing
    claimed = await claiming
    assert claimed is not None
    assert claimed.job_id == accepted.job_id
    await other.close()
    await check_rules(postgres_database)


def test_a_probe_is_waited_for_longer_than_an_attempt_may_take() -> None:
    assert to_us(120 + 2 * 15) <= claim_module.PROBE_US
