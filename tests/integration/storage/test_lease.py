"""Leases: exactly the attempts a process knows of."""

from __future__ import annotations

from storage.clock import to_us
from storage.database import Database
from storage.jobs.cancel import request_cancel
from storage.jobs.lease import Renewal, renew
from storage.jobs.reconcile import Stale, expired_jobs
from storage.jobs.settle import rebuild, release
from tests.integration.storage.acts import TENANT, answer, ask, everything, job_row, pass_time, take
from tests.integration.storage.rules import check_rules


async def test_a_renewal_counts_from_now_by_the_databases_clock(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(pass_time, 10)
    await database.write(renew, [(claimed.job_id, 1)], to_us(15))
    lease = (await job_row(database, claimed.job_id))["lease_until"]
    assert to_us(15) <= lease - claimed.claimed_at < to_us(20)
    assert await database.read(expired_jobs, 10) == []
    await check_rules(database)


async def test_a_claim_whose_reply_was_lost_is_not_renewed(database: Database) -> None:
    """Though it is the same worker's: it renews what it knows, not what bears its name."""
    await ask(database)
    await ask(database)
    known, unknown = await take(database, worker="w1"), await take(database, worker="w1")
    await database.write(pass_time, 10)
    assert await database.write(renew, [(known.job_id, known.attempt)], to_us(15)) == Renewal()
    await database.write(pass_time, 10)
    assert await database.read(expired_jobs, 10) == [Stale(unknown.job_id, unknown.epoch)]


async def test_an_attempt_that_another_has_by_now_is_lost(database: Database) -> None:
    await ask(database)
    first = await take(database, worker="w1")
    await database.write(release, first.job_id, first.epoch)
    second = await take(database, worker="w1")
    before = await everything(database)
    renewal = await database.write(renew, [(first.job_id, first.attempt)], to_us(99))
    assert renewal == Renewal(lost=frozenset({(first.job_id, first.attempt)}))
    assert await everything(database) == before
    renewal = await database.write(renew, [(first.job_id, 1), (second.job_id, 2)], to_us(15))
    assert renewal.lost == {(first.job_id, 1)}


async def test_an_attempt_that_has_ended_is_lost(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await answer(database, claimed)
    assert (await database.write(renew, [(claimed.job_id, 1)], to_us(15))).lost == {(claimed.job_id, 1)}


async def test_an_attempt_keeps_its_lease_over_a_rebuild(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(rebuild, claimed.job_id, claimed.epoch, "so far", [])
    assert await database.write(renew, [(claimed.job_id, claimed.attempt)], to_us(15)) == Renewal()


async def test_a_wish_to_stop_is_told_with_its_reason(database: Database) -> None:
    await ask(database)
    await ask(database)
    stopped, other = await take(database), await take(database)
    await database.write(request_cancel, TENANT, stopped.job_id, "the user left")
    renewal = await database.write(renew, [(stopped.job_id, 1), (other.job_id, 1)], to_us(15))
    assert renewal == Renewal(cancelled={(stopped.job_id, 1): "the user left"})


async def test_nothing_held_is_nothing_asked(database: Database) -> None:
    assert await database.write(renew, [], to_us(15)) == Renewal()


async def test_many_leases_are_renewed_at_once(database: Database) -> None:
    for number in range(40):
        await ask(database, tenant=f"t{number % 4}")
    held = [((await take(database)).job_id, 1) for _ in range(40)]
    assert await database.write(renew, held, to_us(15)) == Renewal()


async def test_a_renewal_is_no_transition(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(renew, [(claimed.job_id, 1)], to_us(15))
    assert (await job_row(database, claimed.job_id))["epoch"] == claimed.epoch
    await answer(database, claimed)
    await check_rules(database)
