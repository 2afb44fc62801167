"""Jobs as people ask for them."""

from __future__ import annotations

import json

import pytest

from schemas.errors import NotFound
from schemas.ids import new_id
from schemas.job_event import EventId
from storage.clock import to_us
from storage.database import Database
from storage.jobs.settle import fail, finish
from storage.jobs.views import (
    find_transition,
    get_attempts,
    get_job,
    job_state,
    job_states,
    last_event,
    list_jobs,
)
from tests.integration.storage.acts import BROKEN, HOPELESS, TENANT, answer, ask, said, take


async def test_a_job_comes_with_its_body_and_its_last_event(database: Database) -> None:
    accepted = await ask(database, "hello", metadata={"a": 1})
    job = await database.read(get_job, TENANT, accepted.job_id)
    assert (job["body"]["message"], job["body"]["metadata"]) == ("hello", {"a": 1})
    assert json.loads(job["last_event"])["kind"] == "queued"
    await answer(database, await take(database))
    job = await database.read(get_job, TENANT, accepted.job_id)
    assert (job["status"], json.loads(job["last_event"])["kind"]) == ("finished", "final")


async def test_a_missing_and_a_foreign_job_look_the_same(database: Database) -> None:
    accepted = await ask(database)
    for tenant, job_id in ((TENANT, new_id()), ("other", accepted.job_id)):
        for view in (get_job, job_state, last_event):
            with pytest.raises(NotFound) as refusal:
                await database.read(view, tenant, job_id)
            assert refusal.value.reason == "there is no such job"


async def test_jobs_are_listed_newest_first_page_by_page(database: Database) -> None:
    accepted = [await ask(database) for _ in range(5)]
    await ask(database, tenant="other")
    first = await database.read(list_jobs, TENANT, limit=2)
    rest = await database.read(list_jobs, TENANT, limit=9, before=first[-1]["id"])
    assert [job["id"] for job in first + rest] == [one.job_id for one in reversed(accepted)]


async def test_jobs_are_found_by_status_session_and_queue(database: Database) -> None:
    one = await ask(database, queue="a")
    two = await ask(database, session_id=one.session_id, queue="b")
    await ask(database, queue="a")
    await answer(database, await take(database, "a"))
    found = [
        await database.read(list_jobs, TENANT, limit=9, **{key: value})
        for key, value in (("status", "finished"), ("session_id", one.session_id), ("queue", "b"))
    ]
    assert [[job["id"] for job in jobs] for jobs in found] == [
        [one.job_id],
        [two.job_id, one.job_id],
        [two.job_id],
    ]


async def test_every_attempt_is_told_in_order(database: Database) -> None:
    await ask(database)
    first = await take(database, worker="w1")
    await database.write(fail, first.job_id, first.epoch, BROKEN, delay_us=0)
    second = await take(database, worker="w2")
    await database.write(finish, second.job_id, second.epoch, said("x"), None)
    attempts = await database.read(get_attempts, first.job_id)
    assert [(one["attempt"], one["worker"], one["ending"]) for one in attempts] == [
        (1, "w1", "fail"),
        (2, "w2", "finish"),
    ]


async def test_the_states_of_many_jobs_come_in_one_answer_without_those_nobody_has(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, HOPELESS, delay_us=0)
    live = await ask(database)
    ids = [claimed.job_id, live.job_id, new_id()]
    assert await database.read(job_states, ids) == {claimed.job_id: ("dead", 2), live.job_id: ("queued", 0)}
    assert await database.read(job_states, []) == {}


async def test_thousands_of_streams_are_one_question(database: Database) -> None:
    accepted = await ask(database)
    ids = [new_id() for _ in range(5000)]
    assert await database.read(job_states, [*ids, accepted.job_id]) == {accepted.job_id: ("queued", 0)}


async def test_the_last_event_is_that_of_the_last_transition(database: Database) -> None:
    accepted = await ask(database)
    assert accepted.recorded is not None
    assert await database.read(last_event, TENANT, accepted.job_id) == (EventId(0, 1), accepted.recorded.event, False)
    claimed = await take(database)
    assert await database.read(last_event, TENANT, accepted.job_id) == (EventId(1, 1), claimed.recorded.event, False)
    done = await answer(database, claimed)
    assert await database.read(last_event, TENANT, accepted.job_id) == (EventId(2, 1), done.event, True)


async def test_a_commit_of_unknown_fate_can_be_looked_up(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    assert await database.read(find_transition, claimed.job_id, claimed.epoch + 1) is None
    recorded = await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=to_us(2))
    found = await database.read(find_transition, claimed.job_id, claimed.epoch + 1)
    assert found is not None
    assert (found.epoch, found.kind, found.event) == (recorded.epoch, "fail", recorded.event)
    assert found.terminal == recorded.terminal
