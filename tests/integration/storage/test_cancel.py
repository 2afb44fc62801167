"""Asking for a job to be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.util import await_only

from schemas.errors import NotFound, TransitionRefused
from schemas.ids import new_id
from storage.clock import to_us
from storage.database import Database, open_database
from storage.jobs import move, settle
from storage.jobs.cancel import request_cancel
from storage.jobs.lease import renew
from storage.jobs.settle import expire, fail, rebuild
from tests.integration.storage.acts import (
    BROKEN,
    TENANT,
    answer,
    ask,
    everything,
    job_row,
    pass_time,
    take,
    try_claim,
)
from tests.integration.storage.conftest import Shared
from tests.integration.storage.rules import check_rules


async def test_a_queued_job_is_cancelled_at_once(database: Database) -> None:
    accepted = await ask(database)
    outcome = await database.write(request_cancel, TENANT, accepted.job_id, "user")
    assert outcome.result == "cancelled"
    assert outcome.recorded is not None
    assert (outcome.recorded.epoch, outcome.recorded.terminal) == (1, True)
    assert await try_claim(database) is None
    await check_rules(database)


async def test_a_job_that_waits_for_its_retry_is_cancelled_at_once(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=to_us(2))
    assert (await database.write(request_cancel, TENANT, claimed.job_id, "user")).result == "cancelled"
    await check_rules(database)


async def test_a_running_job_is_flagged_and_goes_on(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    outcome = await database.write(request_cancel, TENANT, claimed.job_id, "user")
    assert (outcome.result, outcome.recorded) == ("stopping", None)
    job = await job_row(database, claimed.job_id)
    assert (job["status"], job["epoch"], job["cancel_reason"]) == ("running", 1, "user")
    assert (await database.write(request_cancel, TENANT, claimed.job_id, "again")).result == "stopping"
    await check_rules(database)


async def test_the_flag_survives_a_rebuild(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(request_cancel, TENANT, claimed.job_id, "user")
    rebuilt = await database.write(rebuild, claimed.job_id, claimed.epoch, "", [])
    assert (await database.write(fail, claimed.job_id, rebuilt.epoch, BROKEN, delay_us=0)).kind == "cancel"
    await check_rules(database)


async def test_a_job_that_has_ended_stays_as_it_is(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await answer(database, claimed)
    before = await everything(database)
    assert (await database.write(request_cancel, TENANT, claimed.job_id, "user")).result == "ended"
    assert await everything(database) == before


async def test_a_missing_and_a_foreign_job_look_the_same(database: Database) -> None:
    accepted = await ask(database)
    before = await everything(database)
    reasons = []
    for tenant, job_id in (("other", accepted.job_id), (TENANT, new_id())):
        with pytest.raises(NotFound) as refusal:
            await database.write(request_cancel, tenant, job_id, "user")
        reasons.append((refusal.value.reason, refusal.value.field))
    assert reasons[0] == reasons[1]
    assert await everything(database) == before


@contextmanager
def paused_transition(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """(reached, resume): the next transition stops after it has read its job, until `resume` is set."""
    hold, reached, resume = move.hold, asyncio.Event(), asyncio.Event()

    def hold_and_wait(*arguments: Any, **options: Any) -> Any:
        held = hold(*arguments, **options)
        reached.set()
        await_only(resume.wait())
        return held

    with monkeypatch.context() as patch:
        patch.setattr(settle, "hold", hold_and_wait)
        yield reached, resume


async def test_a_wish_to_cancel_that_meets_a_failure_under_way_is_not_forgotten(
    postgres_database: Database, shared_postgres: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_database(shared_postgres.url)
    await ask(postgres_database)
    claimed = await take(postgres_database)
    with paused_transition(monkeypatch) as (reached, resume):
        failing = asyncio.create_task(postgres_database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0))
        await reached.wait()
        cancelling = asyncio.create_task(other.write(request_cancel, TENANT, claimed.job_id, "user"))
        await until_someone_waits_for_a_lock(postgres_database)
        resume.set()
        assert (await failing).kind == "fail"
        assert (await cancelling).result == "cancelled"
    await other.close()
    await check_rules(postgres_database)


async def test_a_renewal_that_meets_an_expiry_under_way_hears_of_it(
    postgres_database: Database, shared_postgres: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_database(shared_postgres.url)
    await ask(postgres_database)
    claimed = await take(postgres_database)
    await postgres_database.write(pass_time, 16)
    with paused_transition(monkeypatch) as (reached, resume):
        expiring = asyncio.create_task(postgres_database.write(expire, claimed.job_id, claimed.epoch))
        await reached.wait()
        renewing = asyncio.create_task(other.write(renew, [(claimed.job_id, claimed.attempt)], to_us(15)))
        await until_someone_waits_for_a_lock(postgres_database)
        resume.set()
        assert (await expiring).kind == "expire"
        assert (await renewing).lost == {(claimed.job_id, claimed.attempt)}
    await other.close()
    await check_rules(postgres_database)


async def test_an_expiry_that_meets_a_renewal_under_way_is_refused(
    postgres_database: Database, shared_postgres: Shared
) -> None:
    other = open_database(shared_postgres.url)
    await ask(postgres_database)
    claimed = await take(postgres_database)
    await postgres_database.write(pass_time, 16)
    renewed, resume = asyncio.Event(), asyncio.Event()

    def renew_and_wait(connection: Any) -> None:
        renew(connection, [(claimed.job_id, claimed.attempt)], to_us(15))
        renewed.set()
        await_only(resume.wait())

    renewing = asyncio.create_task(other.write(renew_and_wait))
    await renewed.wait()
    expiring = asyncio.create_task(postgres_database.write(expire, claimed.job_id, claimed.epoch))
    await until_someone_waits_for_a_lock(postgres_database)
    resume.set()
    await renewing
    with pytest.raises(TransitionRefused):
        await expiring
    await other.close()
    await check_rules(postgres_database)


async def until_someone_waits_for_a_lock(database: Database) -> None:
    def waiting(connection: Any) -> int:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        return int(connection.exec_driver_sql(query).scalar_one())

    async with asyncio.timeout(10):
        while not await database.read(waiting):  # noqa: ASYNC110 - another process does the waiting
            await asyncio.sleep(0.005)
