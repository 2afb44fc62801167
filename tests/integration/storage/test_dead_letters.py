"""Dead letters as they are looked at."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.errors import JobError, NotFound
from schemas.stream_event import ToolNote
from storage.database import Database
from storage.dead_letters import get_letter, list_letters
from storage.jobs.move import AttemptRecord
from storage.jobs.redrive import discard, redrive
from storage.jobs.settle import fail
from storage.tables import dead_letters
from tests.integration.storage.acts import BROKEN, HOPELESS, TENANT, ask, die, row, take

OTHER = JobError(code="too_long", message="the conversation is too long", retryable=False)


async def listed(database: Database, tenant: str = TENANT, limit: int = 50, **options: Any) -> list[str]:
    found = await database.read(list_letters, tenant, limit=limit, **{"wanted": {}, **options})
    return [letter["id"] for letter in found]


async def test_letters_are_listed_newest_first_and_page_by_page(database: Database) -> None:
    ids = [(await die(database))[0] for _ in range(5)]
    await die(database, tenant="other")
    assert await listed(database) == ids[::-1]
    assert await listed(database, limit=2) == [ids[4], ids[3]]
    assert await listed(database, limit=2, before=ids[3]) == [ids[2], ids[1]]
    assert len(await listed(database, "other")) == 1


async def test_letters_are_filtered_by_everything_they_carry(database: Database) -> None:
    plain, _, _ = await die(database)
    bulk, _, _ = await die(database, queue="bulk")
    long, _, _ = await die(database, error=OTHER)
    other, _, _ = await die(database, agent_framework="langgraph", model="gpt")
    assert await listed(database, wanted={"queue": "bulk"}) == [bulk]
    assert await listed(database, wanted={"error_code": "too_long"}) == [long]
    assert await listed(database, wanted={"framework": "langgraph"}) == [other]
    assert await listed(database, wanted={"model": "gpt"}) == [other]
    assert await listed(database, wanted={"model": "gpt", "queue": "bulk"}) == []
    died_at = (await row(database, dead_letters, id=long))["created_at"]
    assert await listed(database, wanted={"since": died_at}) == [other, long]
    assert await listed(database, wanted={"until": died_at}) == [bulk, plain]


async def test_only_what_nobody_has_decided_about_is_lying(database: Database) -> None:
    lying, redriven, discarded = [(await die(database))[0] for _ in range(3)]
    await database.write(redrive, TENANT, redriven)
    await database.write(discard, TENANT, discarded)
    assert await listed(database) == [lying]
    assert await listed(database, state="redriven") == [redriven]
    assert await listed(database, state="discarded") == [discarded]


async def test_a_letter_holds_all_that_is_known_of_every_attempt(database: Database) -> None:
    accepted = await ask(database, "do it", metadata={"ticket": 1})
    note: ToolNote = {"id": "t", "name": "calculator", "status": "finished", "result": "2"}
    for number in (1, 2):
        claimed = await take(database)
        shown = AttemptRecord("ValueError", f"trace {number}", f"so far {number}", [note])
        await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0, attempt=shown)
    letter = await row(database, dead_letters)
    found = await database.read(get_letter, TENANT, letter["id"])
    assert (found["job"]["id"], found["job"]["status"]) == (accepted.job_id, "dead")
    assert (found["job"]["body"]["message"], found["job"]["body"]["metadata"]) == ("do it", {"ticket": 1})
    assert [attempt["attempt"] for attempt in found["attempts"]] == [1, 2]
    last = found["attempts"][1]
    assert (last["error_class"], last["trace"], last["shown_text"]) == ("ValueError", "trace 2", "so far 2")
    assert (last["shown_tools"], last["error"], last["ending"]) == ([note], BROKEN.model_dump(), "fail")
    assert last["worker"] == "w"
    assert last["ended_at"] >= last["started_at"]


async def test_missing_and_foreign_letters_look_the_same(database: Database) -> None:
    letter_id, _, _ = await die(database, error=HOPELESS)
    for tenant, wanted in (("other", letter_id), (TENANT, "01a22e77-b012-7487-bbca-4f0f123f3171")):
        with pytest.raises(NotFound, match="there is no such dead letter"):
            await database.read(get_letter, tenant, wanted)
