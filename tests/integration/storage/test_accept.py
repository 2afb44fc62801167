"""Accept: a job exists once it is committed, once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy import Connection

from schemas.chat_job import ChatJob
from schemas.errors import InvalidRequest, NotFound, TransitionRefused
from schemas.ids import new_id
from storage.clock import to_us
from storage.database import Database, open_database
from storage.jobs.accept import accept
from storage.jobs.cancel import request_cancel
from storage.sessions import NewSession, insert_session
from storage.tables import job_bodies, jobs, lanes, messages, sessions, transitions
from tests.integration.storage.acts import FRAMEWORK, ask, everything, job_row, row, rows, take
from tests.integration.storage.rules import check_rules


async def test_a_message_opens_a_session_with_the_jobs_settings(database: Database) -> None:
    accepted = await ask(database, "hello", system="be brief", language="fr", tools=["calculator"], user_id="u")
    assert accepted.created
    session = await row(database, sessions)
    assert session["id"] == accepted.session_id
    assert (session["hidden"], session["next_seq"], session["active_leaf"]) == (False, 2, None)
    assert (session["system"], session["language"], session["tools"]) == ("be brief", "fr", ["calculator"])
    assert session["agent_framework"] == FRAMEWORK
    message = await row(database, messages)
    assert (message["role"], message["content"], message["placed"]) == ("user", "hello", False)
    await check_rules(database)


async def test_the_row_is_queued_at_epoch_0_and_due_now(database: Database) -> None:
    accepted = await ask(database, priority=3, deadline_s=60, queue="bulk")
    job = await job_row(database, accepted.job_id)
    assert (job["status"], job["epoch"], job["head"], job["session_seq"]) == ("queued", 0, True, 1)
    assert (job["lane"], job["queue"], job["rank"]) == ("bulk", "bulk", -7)
    assert job["due_at"] == job["created_at"]
    assert job["deadline_at"] - job["created_at"] == to_us(60)
    lane = await row(database, lanes)
    assert (lane["lane"], lane["tenant"], lane["running"]) == ("bulk", "default", 0)
    assert lane["next_due"] == job["due_at"]


async def test_the_queued_event_is_returned_as_it_is_stored(database: Database) -> None:
    accepted = await ask(database, queue="bulk")
    assert accepted.recorded is not None
    stored = await row(database, transitions)
    assert (stored["epoch"], stored["kind"], stored["event"].encode()) == (0, "accept", accepted.recorded.event)
    event = json.loads(stored["event"])
    assert (event["kind"], event["queue"], event["session_id"]) == ("queued", "bulk", accepted.session_id)
    assert accepted.recorded.wakes == "bulk"
    assert not accepted.recorded.terminal


async def test_a_stateless_job_gets_a_hidden_session_that_holds_its_history(database: Database) -> None:
    history = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    accepted = await database.write(accept, ChatJob.from_request({"messages": history}), FRAMEWORK)
    session = await row(database, sessions)
    assert session["hidden"]
    stored = await rows(database, messages)
    assert [message["content"] for message in stored] == ["be brief", "one", "two", "three"]
    assert [message["placed"] for message in stored] == [True, True, True, False]
    assert [message["parent_id"] for message in stored[:3]] == [None, stored[0]["id"], stored[1]["id"]]
    assert session["active_leaf"] == stored[2]["id"]
    claimed = await take(database)
    assert claimed.job_id == accepted.job_id
    assert (claimed.user_message, claimed.history_leaf) == ("three", stored[2]["id"])
    await check_rules(database)


async def test_the_same_request_again_finds_the_job(database: Database) -> None:
    job = ChatJob(message="hello", metadata={"a": 1, "b": 2})
    first = await database.write(accept, job, FRAMEWORK)
    before = await everything(database)
    again = ChatJob(message="hello", metadata={"b": 2, "a": 1}, job_id=job.job_id)
    second = await database.write(accept, again, FRAMEWORK)
    assert (second.job_id, second.session_id, second.queue) == (first.job_id, first.session_id, first.queue)
    assert not second.created
    assert second.recorded is None
    assert await everything(database) == before


async def test_the_same_request_finds_the_job_after_its_end(database: Database) -> None:
    job = ChatJob(message="hello")
    await database.write(accept, job, FRAMEWORK)
    await database.write(request_cancel, "default", job.job_id, "user")
    assert not (await database.write(accept, job, FRAMEWORK)).created


@pytest.mark.parametrize(
    "other",
    [{"message": "bye"}, {"message": "hello", "priority": 1}, {"message": "hello", "tenant": "other"}],
    ids=["another body", "another priority", "another tenant"],
)
async def test_an_id_is_refused_for_anything_else(database: Database, other: dict[str, Any]) -> None:
    accepted = await ask(database, "hello")
    before = await everything(database)
    with pytest.raises(InvalidRequest) as refusal:
        await database.write(accept, ChatJob(job_id=accepted.job_id, **other), FRAMEWORK)
    assert refusal.value.field == "job_id"
    assert await everything(database) == before


async def test_a_foreign_tenant_learns_nothing_of_the_job(database: Database) -> None:
    accepted = await ask(database, "hello")
    with pytest.raises(InvalidRequest) as refusal:
        await ask(database, "hello", job_id=accepted.job_id, tenant="other")
    assert "hello" not in refusal.value.reason
    assert "tenant" not in refusal.value.reason


async def test_one_id_raced_from_two_connections_is_one_job_one_message_one_place(
    database: Database, database_url: str
) -> None:
    other = open_database(database_url)
    try:
        session = (await ask(database)).session_id
        for number in range(15):
            job = ChatJob(message=f"raced {number}", session_id=session if number % 2 else None)
            tries = [one.write(accept, job, FRAMEWORK) for one in (database, other, database, other)]
            outcomes = await asyncio.gather(*tries)
            assert sum(outcome.created for outcome in outcomes) == 1
            assert len({outcome.session_id for outcome in outcomes}) == 1
            assert len(await rows(database, messages, job_id=job.job_id)) == 1
            assert len(await rows(database, job_bodies, job_id=job.job_id)) == 1
        assert len(await rows(database, jobs)) == 16
        assert len(await rows(database, sessions)) == 9
        assert (await row(database, sessions, id=session))["next_seq"] == 9
        await check_rules(database)
    finally:
        await other.close()


async def test_one_id_raced_with_different_bodies_has_one_winner(database: Database, database_url: str) -> None:
    other = open_database(database_url)
    try:
        for _ in range(8):
            job_id = new_id()
            tries = [
                one.write(accept, ChatJob(message=text, job_id=job_id, queue=text), FRAMEWORK)
                for one, text in ((database, "a"), (other, "b"), (database, "c"))
            ]
            outcomes = await asyncio.gather(*tries, return_exceptions=True)
            refused = [outcome for outcome in outcomes if isinstance(outcome, InvalidRequest)]
            assert len(refused) == 2, outcomes
        await check_rules(database)
    finally:
        await other.close()


async def test_many_jobs_of_one_session_raced_get_places_without_a_gap(database: Database, database_url: str) -> None:
    other = open_database(database_url)
    try:
        session = (await ask(database)).session_id
        await asyncio.gather(*(ask(one, session_id=session) for one in (database, other) * 6))
        places = sorted(job["session_seq"] for job in await rows(database, jobs))
        assert places == list(range(1, 14))
        await check_rules(database)
    finally:
        await other.close()


@pytest.mark.parametrize("tenant", ["default", "other"])
async def test_a_missing_and_a_foreign_session_look_the_same(database: Database, tenant: str) -> None:
    accepted = await ask(database)
    before = await everything(database)
    session_id = new_id() if tenant == "default" else accepted.session_id
    with pytest.raises(NotFound) as refusal:
        await ask(database, session_id=session_id, tenant=tenant)
    assert (refusal.value.reason, refusal.value.field) == ("there is no such session", "session_id")
    assert await everything(database) == before


async def test_only_a_user_message_of_the_session_can_be_answered_again(database: Database) -> None:
    accepted = await ask(database)
    elsewhere = await ask(database, "another session")
    foreign = (await row(database, messages, job_id=elsewhere.job_id))["id"]
    before = await everything(database)
    for message_id in (new_id(), foreign):
        with pytest.raises(NotFound) as refusal:
            await database.write(accept, ChatJob(reply_to=message_id, session_id=accepted.session_id), FRAMEWORK)
        assert refusal.value.field == "reply_to"
    assert await everything(database) == before


async def test_a_session_nobody_answers_takes_no_job(database: Database) -> None:
    def open_silent_session(connection: Connection) -> str:
        session = NewSession(agent_framework="none")
        insert_session(connection, session, active_leaf=None, now=1)
        return session.id

    session_id = await database.write(open_silent_session)
    before = await everything(database)
    with pytest.raises(InvalidRequest) as refusal:
        await ask(database, session_id=session_id)
    assert refusal.value.field == "agent_framework"
    assert await everything(database) == before
    assert (await ask(database, session_id=session_id, agent_framework="echo")).created


async def test_a_job_takes_what_it_does_not_say_from_its_session(database: Database) -> None:
    opened = await ask(database, model="m1", user_id="u1", agent_framework="langgraph")
    plain = await job_row(database, (await ask(database, session_id=opened.session_id)).job_id)
    assert (plain["model"], plain["user_id"], plain["agent_framework"]) == ("m1", "u1", "langgraph")
    own = await job_row(database, (await ask(database, session_id=opened.session_id, model="m2")).job_id)
    assert own["model"] == "m2"


async def test_what_fails_to_be_accepted_leaves_nothing(database: Database) -> None:
    def accept_and_break(connection: Connection, job: ChatJob) -> None:
        accept(connection, job, FRAMEWORK)
        raise TransitionRefused("for the test")

    before = await everything(database)
    with pytest.raises(TransitionRefused):
        await database.write(accept_and_break, ChatJob(message="hello"))
    assert await everything(database) == before
