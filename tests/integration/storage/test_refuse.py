"""What a raw producer sent and nobody can accept: it still ends, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from schemas.chat_job import ChatJob
from schemas.errors import InvalidRequest, JobError
from schemas.ids import new_id
from storage.database import Database, open_database
from storage.jobs.accept import accept
from storage.jobs.refuse import refuse
from storage.jobs.statements import Recorded
from storage.jobs.views import get_job
from storage.quarantine import keep
from storage.tables import dead_letters, jobs, quarantine, sessions, transitions
from tests.integration.storage.acts import FRAMEWORK, TENANT, ask, everything, job_row, row, rows, take, try_claim

ERROR = JobError(code="invalid", message="message: the message is empty", retryable=False)


async def refused(database: Database, job_id: str, argument: dict[str, Any] | None = None) -> list[Recorded]:
    told = {"job_id": job_id, "message": ""} if argument is None else argument
    return await database.write(refuse, TENANT, job_id, "chat", FRAMEWORK, told, ERROR)


async def test_a_refused_job_is_dead_with_both_its_events(database: Database) -> None:
    job_id = new_id()
    accepted, failed = await refused(database, job_id)
    assert [one.epoch for one in (accepted, failed)] == [0, 1]
    assert (accepted.terminal, failed.terminal) == (False, True)
    job = await job_row(database, job_id)
    assert (job["status"], job["epoch"], job["attempt"], job["error_code"]) == ("dead", 1, 0, "invalid")
    letter = await row(database, dead_letters)
    assert (letter["job_id"], letter["epoch"], letter["error"]) == (job_id, 1, ERROR.model_dump())
    assert [one["event"].encode() for one in await rows(database, transitions)] == [accepted.event, failed.event]
    event = json.loads(failed.event)
    assert (event["kind"], event["error"], event["dead_letter_id"]) == ("failed", ERROR.model_dump(), letter["id"])
    assert (await database.read(get_job, TENANT, job_id))["body"] == {"job_id": job_id, "message": ""}
    assert await try_claim(database) is None


async def test_a_refused_job_holds_up_nobody(database: Database) -> None:
    await refused(database, new_id())
    good = await ask(database)
    assert (await take(database)).job_id == good.job_id


async def test_a_job_is_refused_once(database: Database, database_url: str) -> None:
    other = open_database(database_url)
    for _ in range(8):
        job_id = new_id()
        outcomes = await asyncio.gather(*(refused(one, job_id) for one in (database, other, database, other)))
        assert sorted(len(events) for events in outcomes) == [0, 0, 0, 2]
        assert len(await rows(database, dead_letters, job_id=job_id)) == 1
    assert len(await rows(database, sessions)) == len(await rows(database, jobs)) == 8
    await other.close()


async def test_a_job_that_was_accepted_is_not_refused(database: Database) -> None:
    accepted = await ask(database)
    before = await everything(database)
    assert await refused(database, accepted.job_id) == []
    assert await everything(database) == before


async def test_the_id_of_a_refused_job_is_taken(database: Database) -> None:
    job_id = new_id()
    await refused(database, job_id)
    with pytest.raises(InvalidRequest):
        await database.write(accept, ChatJob(message="hello", job_id=job_id), FRAMEWORK)


async def test_a_refused_jobs_session_gives_no_place_twice(database: Database) -> None:
    await refused(database, new_id())
    session = await row(database, sessions)
    joined = await ask(database, session_id=session["id"])
    assert (await job_row(database, joined.job_id))["session_seq"] == 2


@pytest.mark.parametrize("value", ["\x00", "\ud800", 10**40, float("nan")], ids=["NUL", "half", "huge", "nan"])
async def test_a_job_can_be_refused_whatever_is_in_it(database: Database, value: Any) -> None:
    job_id = new_id()
    assert len(await refused(database, job_id, {"job_id": job_id, "message": value})) == 2
    assert (await job_row(database, job_id))["status"] == "dead"


async def test_bytes_that_nobody_could_read_are_kept(database: Database) -> None:
    payload = bytes(range(256))
    kept = await database.write(keep, "chat", "no JSON: \x00\ud800" + "x" * 1000, payload)
    found = await row(database, quarantine)
    assert (found["id"], found["queue"], bytes(found["payload"])) == (kept, "chat", payload)
    assert found["reason"].startswith("no JSON: \ufffd\ufffdx")
    assert len(found["reason"]) == 500
