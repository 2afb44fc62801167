"""if_busy: a message for a session that still answers waits for its turn, is refused, or makes way for itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.util import await_only

from schemas.agent_message import AgentMessage
from schemas.chat_job import ChatJob
from schemas.errors import InvalidRequest, NotFound, SessionBusy, TransitionRefused
from storage.clock import to_us
from storage.database import Database, open_database
from storage.jobs import interrupt as interrupt_module
from storage.jobs.accept import Accepted, accept
from storage.jobs.claim import Claim, claim
from storage.jobs.interrupt import REASON
from storage.jobs.lease import renew
from storage.jobs.settle import cancel, fail, finish
from storage.tables import jobs, messages, sessions
from tests.integration.storage.acts import (
    BROKEN,
    FRAMEWORK,
    LEASE_US,
    answer,
    ask,
    event_of,
    everything,
    job_row,
    kinds,
    pass_time,
    row,
    rows,
    said,
    take,
    try_claim,
)
from tests.integration.storage.conftest import Shared
from tests.integration.storage.rules import check_rules
from tests.integration.storage.test_cancel import until_someone_waits_for_a_lock
from tests.integration.storage.test_concurrency import deadlocks


async def interrupt(database: Database, session_id: str, message: str = "stop, rather this", **fields: Any) -> Accepted:
    return await ask(database, message, session_id=session_id, if_busy="interrupt", **fields)


async def stop(database: Database, claimed: Claim, text: str = "") -> None:
    """End an attempt as its worker does when it is told to stop."""
    response = said(text) if text else []
    await database.write(cancel, claimed.job_id, claimed.epoch, REASON, response)


async def test_reject_is_refused_while_the_session_answers_and_stores_nothing(database: Database) -> None:
    first = await ask(database)
    before = await everything(database)
    with pytest.raises(SessionBusy) as refusal:
        await ask(database, session_id=first.session_id, if_busy="reject")
    assert (refusal.value.status, refusal.value.code, refusal.value.field) == (409, "busy", "if_busy")
    assert await everything(database) == before
    await answer(database, await take(database))
    assert (await ask(database, session_id=first.session_id, if_busy="reject")).created
    await check_rules(database)


async def test_reject_is_refused_while_the_session_waits_for_a_retry(database: Database) -> None:
    first = await ask(database)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=to_us(60))
    with pytest.raises(SessionBusy):
        await ask(database, session_id=first.session_id, if_busy="reject")


async def test_the_same_request_again_is_no_busy_session(database: Database) -> None:
    first = await ask(database)
    await answer(database, await take(database))
    job = ChatJob(message="again", session_id=first.session_id, if_busy="reject")
    assert (await database.write(accept, job, FRAMEWORK)).created
    assert not (await database.write(accept, job, FRAMEWORK)).created


@pytest.mark.parametrize("if_busy", ["reject", "interrupt"])
async def test_an_idle_session_takes_the_message_as_any_other(database: Database, if_busy: str) -> None:
    first = await ask(database, if_busy=if_busy)
    await answer(database, await take(database))
    second = await ask(database, session_id=first.session_id, if_busy=if_busy)
    assert second.interrupted == interrupt_module.NOTHING_STOPPED
    assert (await take(database)).job_id == second.job_id
    await check_rules(database)


async def test_what_waits_is_cancelled_and_what_runs_is_told_to_stop(database: Database) -> None:
    first = await ask(database, "one")
    waiting = [await ask(database, str(n), session_id=first.session_id) for n in range(3)]
    claimed = await take(database)
    new = await interrupt(database, first.session_id)
    assert new.interrupted.stopping == (first.job_id,)
    assert {one.job_id for one in new.interrupted.cancelled} == {one.job_id for one in waiting}
    for recorded in new.interrupted.cancelled:
        event = await event_of(database, recorded)
        assert (event["kind"], event["reason"], event["response"]) == ("cancelled", REASON, [])
        assert recorded.wakes is None
    running = await job_row(database, first.job_id)
    assert (running["status"], running["cancel_reason"]) == ("running", REASON)
    job = await job_row(database, new.job_id)
    assert (job["status"], job["head"]) == ("queued", False)
    assert await try_claim(database) is None
    await stop(database, claimed, "so far")
    second = await take(database)
    assert second.job_id == new.job_id
    leaf = await row(database, messages, id=second.history_leaf)
    assert (leaf["content"], leaf["status"]) == ("so far", "cancelled")
    await check_rules(database)


async def test_with_nothing_running_the_new_message_is_next_at_once(database: Database) -> None:
    first = await ask(database)
    await ask(database, session_id=first.session_id)
    new = await interrupt(database, first.session_id)
    assert new.recorded is not None
    assert new.recorded.wakes == "chat"
    assert (await take(database)).job_id == new.job_id
    assert await kinds(database, first.job_id) == ["accept", "cancel"]
    await check_rules(database)


async def test_none_of_those_that_are_stopped_is_ever_the_head(database: Database) -> None:
    """Whoever is cancelled from the front hands the session on to the next one, and a claim might take that."""
    first = await ask(database)
    for _ in range(3):
        await ask(database, session_id=first.session_id)
    new = await interrupt(database, first.session_id)
    order = [one.job_id for one in new.interrupted.cancelled]
    places = [(await job_row(database, job_id))["session_seq"] for job_id in order]
    assert places == [4, 3, 2, 1]
    assert [one["head"] for one in await rows(database, jobs, status="queued")] == [True]


async def test_a_job_that_waits_for_its_retry_is_stopped_at_once(database: Database) -> None:
    first = await ask(database)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=to_us(60))
    new = await interrupt(database, first.session_id)
    assert [one.job_id for one in new.interrupted.cancelled] == [first.job_id]
    assert (await take(database)).job_id == new.job_id
    await check_rules(database)


async def test_an_interrupt_is_interrupted_by_the_next(database: Database) -> None:
    first = await ask(database)
    claimed = await take(database)
    second = await interrupt(database, first.session_id, "second")
    third = await interrupt(database, first.session_id, "third")
    assert third.interrupted.stopping == (first.job_id,)
    assert [one.job_id for one in third.interrupted.cancelled] == [second.job_id]
    await stop(database, claimed)
    assert (await take(database)).job_id == third.job_id
    await check_rules(database)


async def test_a_wish_to_stop_from_before_keeps_its_reason(database: Database) -> None:
    first = await ask(database)
    await take(database)
    await database.write(lambda c: c.execute(jobs.update().values(cancel_reason="user")))
    await interrupt(database, first.session_id)
    assert (await job_row(database, first.job_id))["cancel_reason"] == "user"


async def test_an_answer_that_is_saved_first_wins(database: Database) -> None:
    first = await ask(database)
    claimed = await take(database)
    new = await interrupt(database, first.session_id)
    await answer(database, claimed, "all of it")
    second = await take(database)
    assert second.job_id == new.job_id
    assert (await row(database, messages, id=second.history_leaf))["content"] == "all of it"
    with pytest.raises(TransitionRefused):
        await stop(database, claimed)
    await check_rules(database)


async def test_the_same_interrupt_again_interrupts_nothing_more(database: Database) -> None:
    first = await ask(database)
    job = ChatJob(message="new", session_id=first.session_id, if_busy="interrupt")
    assert (await database.write(accept, job, FRAMEWORK)).created
    later = await ask(database, session_id=first.session_id)
    before = await everything(database)
    again = await database.write(accept, job, FRAMEWORK)
    assert (again.created, again.interrupted.cancelled, again.interrupted.stopping) == (False, (), ())
    assert await everything(database) == before
    assert (await job_row(database, later.job_id))["status"] == "queued"


async def test_an_interrupt_that_is_refused_stops_nothing(database: Database) -> None:
    first = await ask(database)
    await take(database)
    before = await everything(database)
    with pytest.raises(NotFound):
        await interrupt(database, first.session_id, tenant="other")
    with pytest.raises(InvalidRequest):
        await interrupt(database, first.session_id, job_id=first.job_id)
    with pytest.raises(InvalidRequest):
        await interrupt(database, first.session_id, agent_framework="none")
    assert await everything(database) == before


async def test_a_reply_again_may_interrupt_too(database: Database) -> None:
    first = await ask(database)
    claimed = await take(database)
    question = await row(database, messages, job_id=first.job_id, role="user")
    job = ChatJob(reply_to=question["id"], session_id=first.session_id, if_busy="interrupt")
    await database.write(accept, job, FRAMEWORK)
    await stop(database, claimed, "half")
    second = await take(database)
    assert (second.job_id, second.user_message) == (job.job_id, "hello")
    await check_rules(database)


async def test_lanes_of_other_queues_are_told_too(database: Database) -> None:
    first = await ask(database, queue="bulk")
    await ask(database, session_id=first.session_id, queue="other")
    claimed = await take(database, "bulk")
    new = await interrupt(database, first.session_id)
    assert await try_claim(database, "other") is None
    await stop(database, claimed)
    assert (await take(database)).job_id == new.job_id
    await check_rules(database)


async def test_the_users_text_is_stored_once_however_often_a_job_is_tried(database: Database) -> None:
    first = await ask(database, "once")
    for _ in range(2):
        claimed = await take(database)
        await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0, charged=False)
    claimed = await take(database)
    await answer(database, claimed)
    stored = await rows(database, messages, session_id=first.session_id)
    assert [(one["role"], one["content"]) for one in stored] == [("user", "once"), ("assistant", "an answer")]


async def test_two_of_the_same_interrupt_at_once_are_one_job(database: Database, database_url: str) -> None:
    other = open_database(database_url)
    first = await ask(database)
    job = ChatJob(message="new", session_id=first.session_id, if_busy="interrupt")
    made = await asyncio.gather(*(one.write(accept, job, FRAMEWORK) for one in (database, other) * 2))
    assert sorted(one.created for one in made) == [False, False, False, True]
    assert (await job_row(database, job.job_id))["status"] == "queued"
    assert len(await rows(database, messages, job_id=job.job_id)) == 1
    await other.close()
    await check_rules(database)


async def test_one_of_many_that_reject_at_once_is_taken(database: Database, database_url: str) -> None:
    other = open_database(database_url)
    first = await ask(database)
    await answer(database, await take(database))
    tries = [ask(one, session_id=first.session_id, if_busy="reject") for one in (database, other) * 4]
    outcomes = await asyncio.gather(*tries, return_exceptions=True)
    assert len([one for one in outcomes if isinstance(one, Accepted)]) == 1
    assert len([one for one in outcomes if isinstance(one, SessionBusy)]) == 7
    await other.close()
    await check_rules(database)


async def test_interrupts_claims_answers_and_renewals_at_once(database: Database, database_url: str) -> None:
    """Everybody at one session, from two connections and in several lanes: one job is left, the last accepted."""
    other = open_database(database_url)
    before = 0
    if database.dialect == "postgresql":
        await database.close()
        before = await deadlocks(database_url)
    first = await ask(database)
    queues = ("chat", "bulk", "third")

    async def interrupting(one: Database, number: int) -> None:
        for turn in range(6):
            await interrupt(one, first.session_id, f"{number}.{turn}", queue=queues[(number + turn) % 3])

    async def enqueueing(one: Database, number: int) -> None:
        for turn in range(6):
            await ask(one, session_id=first.session_id, queue=queues[(number + turn + 1) % 3])

    async def working(one: Database, queue: str) -> None:
        for turn in range(12):
            claimed = await one.write(claim, queue, "w", LEASE_US)
            if claimed is None:
                await asyncio.sleep(0.002)
                continue
            await one.write(renew, [(claimed.job_id, claimed.attempt)], LEASE_US)
            if (await job_row(one, claimed.job_id))["cancel_reason"] is not None:
                await stop(one, claimed, "half")
            elif turn % 3:
                await answer(one, claimed)
            else:
                await one.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0)

    async with asyncio.timeout(60):
        await asyncio.gather(
            *(interrupting(one, number) for number, one in enumerate((database, other))),
            *(enqueueing(one, number) for number, one in enumerate((database, other))),
            *(working(one, queue) for one in (database, other) for queue in queues),
        )
    for _ in range(60):
        await database.write(pass_time, 1)
        found = [one for queue in queues if (one := await database.write(claim, queue, "last", LEASE_US))]
        for claimed in found:
            await database.write(finish, claimed.job_id, claimed.epoch, said("late"), None)
        if not found:
            break
    tables = await check_rules(database)
    assert all(job["status"] in ("finished", "cancelled", "dead") for job in tables.jobs.values())
    await other.close()
    if database.dialect == "postgresql":
        await database.close()
        assert await deadlocks(database_url) == before, "none that was resolved and run again, either"


async def test_a_job_that_arrives_in_a_lane_not_yet_locked_is_stopped_as_well(
    postgres_database: Database, shared_postgres: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_database(shared_postgres.url)
    first = await ask(postgres_database)
    looked, resume = asyncio.Event(), asyncio.Event()
    looks = 0
    lock = interrupt_module.lock_lanes_of

    def lock_and_wait(connection: Connection, *arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        locked = lock(connection, *arguments)
        looked.set()
        await_only(resume.wait())
        return locked

    monkeypatch.setattr("storage.jobs.accept.lock_lanes_of", lock_and_wait)
    interrupting = asyncio.create_task(interrupt(postgres_database, first.session_id))
    await looked.wait()
    between = await ask(other, session_id=first.session_id, queue="bulk")
    resume.set()
    new = await interrupting
    assert looks == 2
    assert {one.job_id for one in new.interrupted.cancelled} == {first.job_id, between.job_id}
    await other.close()
    await check_rules(postgres_database)


async def test_an_interrupt_that_meets_a_claim_under_way_tells_the_attempt(
    postgres_database: Database, shared_postgres: Shared
) -> None:
    other = open_database(shared_postgres.url)
    first = await ask(postgres_database)
    claimed, resume = asyncio.Event(), asyncio.Event()

    def claim_and_wait(connection: Connection) -> Claim | None:
        found = claim(connection, "chat", "w", LEASE_US)
        claimed.set()
        await_only(resume.wait())
        return found

    claiming = asyncio.create_task(other.write(claim_and_wait))
    await claimed.wait()
    interrupting = asyncio.create_task(interrupt(postgres_database, first.session_id))
    await until_someone_waits_for_a_lock(postgres_database)
    resume.set()
    assert await claiming is not None
    new = await interrupting
    assert (new.interrupted.stopping, new.interrupted.cancelled) == ((first.job_id,), ())
    await other.close()
    await check_rules(postgres_database)


async def test_an_interrupt_that_meets_a_finish_under_way_finds_an_idle_session(
    postgres_database: Database, shared_postgres: Shared
) -> None:
    other = open_database(shared_postgres.url)
    first = await ask(postgres_database)
    attempt = await take(postgres_database)
    finished, resume = asyncio.Event(), asyncio.Event()

    def finish_and_wait(connection: Connection) -> None:
        finish(connection, attempt.job_id, attempt.epoch, [AgentMessage.assistant("done")], None)
        finished.set()
        await_only(resume.wait())

    finishing = asyncio.create_task(other.write(finish_and_wait))
    await finished.wait()
    interrupting = asyncio.create_task(interrupt(postgres_database, first.session_id))
    await until_someone_waits_for_a_lock(postgres_database)
    resume.set()
    await finishing
    new = await interrupting
    assert new.interrupted == interrupt_module.NOTHING_STOPPED
    assert (await job_row(postgres_database, new.job_id))["head"]
    session = await row(postgres_database, sessions, id=first.session_id)
    assert (await take(postgres_database)).history_leaf == session["active_leaf"]
    await other.close()
    await check_rules(postgres_database)


async def test_the_events_of_the_stopped_say_so(database: Database) -> None:
    first = await ask(database)
    new = await interrupt(database, first.session_id)
    (recorded,) = new.interrupted.cancelled
    assert json.loads(recorded.event)["reason"] == "interrupted"
