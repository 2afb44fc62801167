"""Retention: what ended long ago goes with all that is kept of it, and nothing else does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import Connection, Table, update
from sqlalchemy.util import await_only

from schemas.agent_message import AgentMessage, OpenAIMessage
from schemas.chat_job import ChatJob
from schemas.errors import Conflict, NotFound
from schemas.ids import new_id
from storage.clock import to_us
from storage.database import Database, open_database
from storage.jobs.accept import Accepted, accept
from storage.jobs.cancel import request_cancel
from storage.jobs.progress import save_round, start_call
from storage.jobs.redrive import discard, redrive
from storage.jobs.refuse import refuse
from storage.jobs.settle import fail, finish
from storage.messages import read_branch
from storage.quarantine import keep
from storage.retention import old_jobs, remove_decided, remove_jobs
from storage.sessions import delete_session
from storage.tables import (
    attempts,
    dead_letters,
    job_bodies,
    jobs,
    messages,
    metadata,
    outbox,
    quarantine,
    rounds,
    sessions,
    tool_calls,
    transitions,
)
from tests.integration.storage.acts import (
    FRAMEWORK,
    HOPELESS,
    TENANT,
    answer,
    ask,
    die,
    everything,
    job_row,
    rows,
    said,
    take,
)
from tests.integration.storage.conftest import Shared
from tests.integration.storage.rules import check_rules
from tests.integration.storage.test_cancel import until_someone_waits_for_a_lock

DAY_US = to_us(86_400)
KEEP_US = 30 * DAY_US
OF_JOBS = (job_bodies, attempts, rounds, tool_calls, transitions, dead_letters, outbox)


async def ages(database: Database, days: int) -> None:
    """Let days pass for all that has ended or been decided about."""

    def age(connection: Connection) -> None:
        us = days * DAY_US
        connection.execute(update(jobs).values(ended_at=jobs.c.ended_at - us))
        for table in (dead_letters, quarantine):
            connection.execute(update(table).values(resolved_at=table.c.resolved_at - us))

    await database.write(age)


async def retain(database: Database, most: int = 100) -> int:
    old = await database.read(old_jobs, KEEP_US, most)
    return await database.write(remove_jobs, old) if old else 0


async def ask_inline(database: Database, text: str = "hello") -> Accepted:
    """A stateless job, whose session is hidden."""
    history = [OpenAIMessage(role="user", content="hi"), OpenAIMessage(role="assistant", content="yes?")]
    question = OpenAIMessage(role="user", content=text)
    return await database.write(accept, ChatJob(messages=[*history, question]), FRAMEWORK)


async def left_of(database: Database, job_id: str) -> dict[str, list[dict[str, Any]]]:
    found = {table.name: await rows(database, table, job_id=job_id) for table in OF_JOBS}
    return {name: kept for name, kept in found.items() if kept}


async def test_an_old_job_goes_with_all_that_is_kept_of_it_and_its_messages_stay(database: Database) -> None:
    old = await ask(database)
    claimed = await take(database)
    call: Any = {"id": "c1", "name": "note", "args": {}}
    assistant = AgentMessage(role="assistant", content="", tool_calls=[call])
    job_id, attempt = claimed.job_id, claimed.attempt
    await database.write(start_call, job_id, attempt, 0, "c1", "note", "write", {}, True)
    result = AgentMessage(role="tool", content="noted", tool_call_id="c1")
    await database.write(save_round, job_id, attempt, 0, [assistant, result], None)
    await answer(database, claimed, "kept")
    assert set(await left_of(database, old.job_id)) == {table.name for table in OF_JOBS} - {"dead_letters", "outbox"}
    await ages(database, 31)
    recent = await ask(database, session_id=old.session_id)
    await answer(database, await take(database))
    assert await retain(database) == 1
    assert await left_of(database, old.job_id) == {}
    assert [one["id"] for one in await rows(database, jobs)] == [recent.job_id]
    (session,) = await rows(database, sessions)
    branch = await database.read(read_branch, TENANT, old.session_id, session["active_leaf"])
    assert [message.content for message in branch] == ["hello", "kept", "hello", "an answer"]


async def test_what_is_not_old_enough_stays(database: Database) -> None:
    await ask(database)
    await answer(database, await take(database))
    await ages(database, 29)
    assert await database.read(old_jobs, KEEP_US, 100) == []


async def test_cancelled_and_discarded_jobs_go_too(database: Database) -> None:
    cancelled = await ask(database)
    await database.write(request_cancel, TENANT, cancelled.job_id, "user")
    letter, dead, _ = await die(database)
    await database.write(discard, TENANT, letter)
    await ages(database, 31)
    assert set(await database.read(old_jobs, KEEP_US, 100)) == {cancelled.job_id, dead}
    assert await retain(database) == 2
    assert await rows(database, jobs) == []


async def test_unfinished_jobs_and_letters_nobody_has_decided_about_stay_for_ever(database: Database) -> None:
    letter, dead, _ = await die(database)
    queued = await ask(database)
    await ages(database, 10_000)
    before = await everything(database)
    assert await database.read(old_jobs, KEEP_US, 100) == []
    assert await database.write(remove_jobs, [queued.job_id]) == 0
    assert await everything(database) == before
    await database.write(redrive, TENANT, letter)
    await ages(database, 10_000)
    assert await retain(database) == 0, "a redriven job is queued again"
    assert (await job_row(database, dead))["status"] == "queued"


async def test_a_job_that_was_redriven_and_died_again_stays(database: Database) -> None:
    letter, dead, _ = await die(database)
    await database.write(redrive, TENANT, letter)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, HOPELESS, delay_us=0)
    await ages(database, 31)
    assert await retain(database) == 0
    assert len(await rows(database, dead_letters, job_id=dead)) == 2


async def test_the_oldest_go_first_and_no_more_than_asked_for(database: Database) -> None:
    ended = []
    for _ in range(5):
        ended.append((await ask(database)).job_id)
        await answer(database, await take(database))
    await ages(database, 31)
    assert await database.read(old_jobs, KEEP_US, 2) == ended[:2]
    assert [await retain(database, 2) for _ in range(4)] == [2, 2, 1, 0]


async def test_the_hidden_session_of_a_stateless_job_goes_with_it(database: Database) -> None:
    accepted = await ask_inline(database)
    await answer(database, await take(database))
    await ages(database, 31)
    assert await retain(database) == 1
    assert await rows(database, sessions) == await rows(database, messages) == []
    with pytest.raises(NotFound):
        await ask(database, session_id=accepted.session_id)


async def test_a_hidden_session_that_was_asked_on_in_stays(database: Database) -> None:
    accepted = await ask_inline(database)
    await answer(database, await take(database))
    await ages(database, 31)
    second = await ask(database, session_id=accepted.session_id)
    assert await retain(database) == 1
    claimed = await take(database)
    assert claimed.job_id == second.job_id
    branch = await database.read(read_branch, TENANT, claimed.session_id, claimed.history_leaf)
    assert [message.content for message in branch] == ["hi", "yes?", "hello", "an answer"]


async def test_a_refused_job_goes_once_it_is_discarded(database: Database) -> None:
    job_id = new_id()
    await database.write(refuse, TENANT, job_id, "chat", FRAMEWORK, {}, HOPELESS)
    await ages(database, 31)
    assert await retain(database) == 0
    (letter,) = await rows(database, dead_letters)
    await database.write(discard, TENANT, letter["id"])
    await ages(database, 31)
    assert await retain(database) == 1
    assert await rows(database, sessions) == []


async def test_nothing_is_left_of_a_job_in_any_table(database: Database) -> None:
    """A table that is added later and names jobs must be thought of here."""
    naming = {table.name for table in metadata.sorted_tables if "job_id" in table.c} - {messages.name}
    assert naming == {table.name for table in OF_JOBS}


async def test_decided_quarantine_goes_and_undecided_stays(database: Database) -> None:
    for _ in range(2):
        await database.write(keep, "chat", "unreadable", b"{")
    first, _ = await rows(database, quarantine)

    def drop(connection: Connection, table: Table) -> None:
        connection.execute(update(table).where(table.c.id == first["id"]).values(resolution="dropped", resolved_at=1))

    await database.write(drop, quarantine)
    assert await database.write(remove_decided, KEEP_US) == 1
    assert first["id"] not in {one["id"] for one in await rows(database, quarantine)}
    assert len(await rows(database, quarantine)) == 1


async def test_two_that_remove_the_same_at_once_do_no_harm(database: Database, database_url: str) -> None:
    other = open_database(database_url)
    for number in range(20):
        await (ask(database) if number % 2 else ask_inline(database))
        await answer(database, await take(database))
    await ages(database, 31)
    old = await database.read(old_jobs, KEEP_US, 100)
    removed = await asyncio.gather(*(one.write(remove_jobs, old) for one in (database, other) * 3))
    assert sum(removed) == 20
    assert await rows(database, jobs) == await rows(database, transitions) == []
    assert len(await rows(database, sessions)) == 10
    await other.close()


async def test_redrive_discard_and_retention_at_once_lose_nothing(database: Database, database_url: str) -> None:
    other = open_database(database_url)
    dead = [await die(database) for _ in range(12)]

    async def decide(letter: str, number: int) -> str:
        act = (redrive, discard)[number % 2]
        try:
            await (database, other)[number % 2].write(act, TENANT, letter)
        except (Conflict, NotFound):
            return "late"
        return act.__name__

    async def keep_removing() -> None:
        for _ in range(30):
            await other.write(remove_jobs, await other.read(old_jobs, 0, 100))

    both = [decide(letter, number) for letter, _, _ in dead for number in range(2)]
    *decisions, _ = await asyncio.gather(*both, keep_removing())
    for index, (_, job_id, _) in enumerate(dead):
        made = decisions[2 * index : 2 * index + 2]
        assert made.count("late") == 1, "it was decided once"
        left = await rows(database, jobs, id=job_id)
        if "redrive" in made:
            assert [one["status"] for one in left] == ["queued"]
        else:
            assert [one["status"] for one in left] in ([], ["dead"])
    await other.close()
    await check_rules(database)


async def test_a_hidden_session_that_somebody_asks_on_in_just_now_stays(
    postgres_database: Database, shared_postgres: Shared
) -> None:
    other = open_database(shared_postgres.url)
    first = await ask_inline(postgres_database)
    await answer(postgres_database, await take(postgres_database))
    await ages(postgres_database, 31)
    job = ChatJob(message="and then?", session_id=first.session_id)
    asked, resume = asyncio.Event(), asyncio.Event()

    def accept_and_wait(connection: Connection) -> Accepted:
        accepted = accept(connection, job, FRAMEWORK)
        asked.set()
        await_only(resume.wait())
        return accepted

    asking = asyncio.create_task(other.write(accept_and_wait))
    await asked.wait()
    removing = asyncio.create_task(retain(postgres_database))
    done, _ = await asyncio.wait([removing], timeout=0.3)
    if not done:
        await until_someone_waits_for_a_lock(postgres_database)
    resume.set()
    await asking
    await removing
    claimed = await take(postgres_database)
    assert claimed.job_id == job.job_id
    branch = await postgres_database.read(read_branch, TENANT, claimed.session_id, claimed.history_leaf)
    assert [message.content for message in branch] == ["hi", "yes?", "hello", "an answer"]
    await postgres_database.write(finish, claimed.job_id, claimed.epoch, said("nothing"), None)
    await ages(postgres_database, 31)
    while await retain(postgres_database):
        pass
    assert await rows(postgres_database, sessions) == await rows(postgres_database, jobs) == [], "nor is it left over"
    await other.close()


async def test_a_session_that_is_deleted_while_its_jobs_are_removed(database: Database, database_url: str) -> None:
    other = open_database(database_url)
    hidden = [await ask_inline(database) for _ in range(8)]
    for _ in hidden:
        await answer(database, await take(database))
    await ages(database, 31)
    old = await database.read(old_jobs, KEEP_US, 100)

    async def delete_all() -> None:
        for one in hidden:
            try:
                await other.write(delete_session, TENANT, one.session_id)
            except NotFound:
                continue

    await asyncio.gather(database.write(remove_jobs, old), delete_all())
    while await retain(database):
        pass
    assert await rows(database, jobs) == await rows(database, sessions) == await rows(database, messages) == []
    await other.close()
