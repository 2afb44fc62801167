"""Redrive and discard: what is decided about a dead letter is decided once, and the job runs as if it were new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy import Connection, update

from schemas.errors import Conflict, NotFound
from storage.database import Database, open_database
from storage.jobs.redrive import discard, redrive
from storage.jobs.refuse import refuse
from storage.jobs.settle import fail, finish
from storage.jobs.statements import Recorded
from storage.messages import read_branch
from storage.sessions import change_session, delete_session, get_session
from storage.tables import dead_letters, jobs, lanes, messages, transitions
from tests.integration.storage.acts import (
    HOPELESS,
    TENANT,
    again,
    answer,
    ask,
    die,
    event_of,
    everything,
    job_row,
    kinds,
    row,
    rows,
    said,
    take,
)

Decide = Callable[[Connection, str, str], Recorded]


async def test_a_redriven_job_is_queued_as_if_it_were_accepted_anew(database: Database) -> None:
    letter_id, job_id, session_id = await die(database, priority=3)
    await database.write(lambda c: c.execute(update(jobs).values(wrote=True, cancel_reason="old")))
    before = await job_row(database, job_id)
    recorded = await database.write(redrive, TENANT, letter_id)
    event = await event_of(database, recorded)
    assert (event["kind"], event["queue"], event["session_id"]) == ("queued", "chat", session_id)
    job = await job_row(database, job_id)
    assert (job["status"], job["epoch"], job["session_seq"], job["head"]) == ("queued", 3, 2, True)
    assert (job["failures"], job["releases"], job["lost_in_company"], job["wrote"]) == (0, 0, 0, False)
    assert job["cancel_reason"] is job["error_code"] is job["started_at"] is job["ended_at"] is None
    assert job["rank"] == -7, "fresh again"
    assert job["deadline_at"] > before["deadline_at"]
    assert (recorded.wakes, recorded.terminal) == ("chat", False)
    letter = await row(database, dead_letters, id=letter_id)
    assert letter["resolution"] == "redriven"
    assert letter["resolved_at"] is not None
    claimed = await take(database)
    assert (claimed.job_id, claimed.epoch, claimed.attempt) == (job_id, 4, 2)
    await answer(database, claimed)
    assert await kinds(database, job_id) == ["accept", "claim", "fail", "redrive", "claim", "finish"]
    assert [lane["running"] for lane in await rows(database, lanes)] == [0]


async def test_a_redriven_job_that_dies_again_leaves_another_letter(database: Database) -> None:
    first, job_id, _ = await die(database)
    await database.write(redrive, TENANT, first)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, HOPELESS, delay_us=0)
    letters = await rows(database, dead_letters, job_id=job_id)
    assert [letter["resolution"] for letter in letters] == ["redriven", None]
    await database.write(redrive, TENANT, letters[1]["id"])


@pytest.mark.parametrize("first", [redrive, discard])
@pytest.mark.parametrize("second", [redrive, discard])
async def test_what_is_decided_stays_decided(database: Database, first: Decide, second: Decide) -> None:
    letter_id, _, _ = await die(database)
    await database.write(first, TENANT, letter_id)
    before = await everything(database)
    with pytest.raises(Conflict, match="already"):
        await database.write(second, TENANT, letter_id)
    assert await everything(database) == before


@pytest.mark.parametrize("decide", [redrive, discard])
async def test_missing_and_foreign_letters_look_the_same(database: Database, decide: Decide) -> None:
    letter_id, _, _ = await die(database)
    before = await everything(database)
    said = set()
    for tenant, wanted in (("other", letter_id), (TENANT, "01a22e77-b012-7487-bbca-4f0f123f3171")):
        with pytest.raises(NotFound) as error:
            await database.write(decide, tenant, wanted)
        said.add(str(error.value))
    assert len(said) == 1
    assert await everything(database) == before


async def test_a_discarded_job_stays_dead_and_says_so_again(database: Database) -> None:
    letter_id, job_id, _ = await die(database)
    recorded = await database.write(discard, TENANT, letter_id)
    event = await event_of(database, recorded)
    assert (event["kind"], event["dead_letter_id"]) == ("failed", letter_id)
    assert event["error"] == HOPELESS.model_dump()
    job = await job_row(database, job_id)
    assert (job["status"], job["epoch"]) == ("dead", 3)
    assert recorded.terminal


async def test_a_job_that_was_refused_cannot_run(database: Database) -> None:
    job_id = "01a22e77-b012-7487-bbca-4f0f123f3171"
    await database.write(refuse, TENANT, job_id, "chat", "echo", {"mesage": "hi"}, HOPELESS)
    letter = await row(database, dead_letters)
    with pytest.raises(Conflict, match="nothing to run"):
        await database.write(redrive, TENANT, letter["id"])
    await database.write(discard, TENANT, letter["id"])


@pytest.mark.parametrize("second", [redrive, discard])
async def test_of_two_decisions_at_once_exactly_one_is_made(
    database: Database, database_url: str, second: Decide
) -> None:
    other = open_database(database_url)
    try:
        for _ in range(15):
            letter_id, job_id, _ = await die(database)
            results = await asyncio.gather(
                *(db.write(decide, TENANT, letter_id) for db, decide in ((database, redrive), (other, second)) * 2),
                return_exceptions=True,
            )
            made = [result for result in results if isinstance(result, Recorded)]
            assert len(made) == 1, results
            assert all(isinstance(result, Conflict) for result in results if result not in made), results
            assert (await job_row(database, job_id))["epoch"] == 3
            if made[0].kind == "redrive":
                await answer(database, await take(database))
    finally:
        await other.close()


@pytest.mark.parametrize("decide", [redrive, discard])
async def test_deciding_while_the_session_is_deleted_leaves_no_half_of_it(
    database: Database, database_url: str, decide: Decide
) -> None:
    other = open_database(database_url)
    try:
        for _ in range(15):
            letter_id, job_id, session_id = await die(database)
            decided, deleted = await asyncio.gather(
                database.write(decide, TENANT, letter_id),
                other.write(delete_session, TENANT, session_id),
                return_exceptions=True,
            )
            if isinstance(deleted, Conflict):
                assert decide is redrive
                assert isinstance(decided, Recorded), decided
                await answer(database, await take(database))
            else:
                assert deleted == [job_id], deleted
                for table in (jobs, messages, transitions, dead_letters):
                    where = {"id": job_id} if table is jobs else {"job_id": job_id}
                    assert await rows(database, table, **where) == [], table.name
                assert isinstance(decided, (Recorded, NotFound)), decided
    finally:
        await other.close()


async def test_a_redrive_into_a_busy_session_waits_for_its_turn(database: Database) -> None:
    letter_id, job_id, session_id = await die(database)
    running = await ask(database, "second", session_id=session_id)
    waiting = await ask(database, "third", session_id=session_id)
    claimed = await take(database)
    recorded = await database.write(redrive, TENANT, letter_id)
    assert recorded.wakes is None
    late = await ask(database, "fifth", session_id=session_id)
    order = [claimed.job_id]
    for _ in range(3):
        await answer(database, claimed)
        claimed = await take(database)
        order.append(claimed.job_id)
    assert order == [running.job_id, waiting.job_id, job_id, late.job_id]


async def test_a_redriven_question_goes_on_below_what_was_said_since(database: Database) -> None:
    letter_id, _, session_id = await die(database, "first")
    await ask(database, "second", session_id=session_id)
    await answer(database, await take(database), "two")
    await database.write(redrive, TENANT, letter_id)
    await answer(database, await take(database), "one")
    assert await branch(database, session_id) == ["second", "two", "first", "one"]


async def test_a_question_that_was_answered_otherwise_keeps_its_place(database: Database) -> None:
    accepted = await ask(database, "first")
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, HOPELESS, delay_us=0)
    letter = await row(database, dead_letters)
    await again(database, accepted, claimed.user_message_id)
    await answer(database, await take(database), "another job's")
    await database.write(redrive, TENANT, letter["id"])
    await answer(database, await take(database), "its own")
    assert await branch(database, accepted.session_id) == ["first", "its own"]


async def test_a_question_the_conversation_stands_at_keeps_its_place(database: Database) -> None:
    letter_id, _, session_id = await die(database, "first")
    question = await row(database, messages)
    await database.write(change_session, TENANT, session_id, {"active_leaf": question["id"]})
    await database.write(redrive, TENANT, letter_id)
    claimed = await take(database)
    await database.write(finish, claimed.job_id, claimed.epoch, said("one"), None)
    assert await branch(database, session_id) == ["first", "one"]


async def branch(database: Database, session_id: str) -> list[str]:
    """What is on the session's active branch."""

    def read(connection: Connection) -> list[str]:
        leaf = get_session(connection, TENANT, session_id)["active_leaf"]
        return [message.content for message in read_branch(connection, TENANT, session_id, leaf)]

    return await database.read(read)
