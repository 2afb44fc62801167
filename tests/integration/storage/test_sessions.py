"""Sessions: whose they are, how they change and go."""

from __future__ import annotations

import asyncio

import pytest

from schemas.agent_message import ChatMessage
from schemas.errors import Conflict, NotFound
from schemas.ids import new_id
from storage.clock import to_us
from storage.database import Database, open_database
from storage.jobs.settle import fail
from storage.sessions import (
    NewSession,
    change_session,
    create_session,
    delete_session,
    get_messages,
    get_session,
    list_sessions,
)
from storage.tables import transitions
from tests.integration.storage.acts import BROKEN, HOPELESS, TENANT, answer, ask, everything, rows, take
from tests.integration.storage.rules import check_rules


async def test_a_session_can_begin_with_a_conversation(database: Database) -> None:
    history = [ChatMessage(role="user", content="u1"), ChatMessage(role="assistant", content="a1")]
    session = await database.write(create_session, NewSession("echo", metadata={"a": [1, None]}), history)
    found = await database.read(get_messages, TENANT, session["id"])
    assert [(message["role"], message["content"]) for message in found] == [("user", "u1"), ("assistant", "a1")]
    assert session["active_leaf"] == found[1]["id"]
    assert session["metadata"] == {"a": [1, None]}
    await ask(database, "u2", session_id=session["id"])
    assert (await take(database)).history_leaf == found[1]["id"]
    await check_rules(database)


async def test_a_missing_and_a_foreign_session_look_the_same(database: Database) -> None:
    opened = await ask(database)
    before = await everything(database)
    for tenant, session_id in ((TENANT, new_id()), ("other", opened.session_id)):
        for refused in (
            database.read(get_session, tenant, session_id),
            database.write(change_session, tenant, session_id, {"model": "m"}),
            database.write(delete_session, tenant, session_id),
        ):
            with pytest.raises(NotFound) as refusal:
                await refused
            assert (refusal.value.reason, refusal.value.field) == ("there is no such session", None)
    assert await everything(database) == before


async def test_sessions_are_listed_newest_first_page_by_page(database: Database) -> None:
    ids = [(await ask(database)).session_id for _ in range(5)]
    await ask(database, tenant="other")
    await database.write(create_session, NewSession("echo", hidden=True), [])
    first = await database.read(list_sessions, TENANT, limit=3)
    rest = await database.read(list_sessions, TENANT, limit=3, before=first[-1]["id"])
    assert [session["id"] for session in first + rest] == ids[::-1]


async def test_settings_change_and_the_rest_stays(database: Database) -> None:
    opened = await ask(database, system="old", language="fr")
    changed = await database.write(
        change_session, TENANT, opened.session_id, {"system": "new", "tools": [], "parameters": {"seed": 1}}
    )
    assert (changed["system"], changed["language"], changed["tools"]) == ("new", "fr", [])
    assert changed["parameters"] == {"seed": 1}
    assert changed == await database.read(get_session, TENANT, opened.session_id)
    assert changed["updated_at"] >= changed["created_at"]
    assert (await take(database)).session["system"] == "new"


async def test_a_session_goes_with_everything_of_its_jobs(database: Database) -> None:
    before = await everything(database)
    kept = await ask(database, "kept")
    opened = await ask(database, "gone", session_id=None)
    await answer(database, await take(database))
    await answer(database, await take(database))
    dead = await ask(database, "dead", session_id=opened.session_id)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, HOPELESS, delay_us=0)
    gone = await database.write(delete_session, TENANT, opened.session_id)
    assert set(gone) == {opened.job_id, dead.job_id}
    await check_rules(database)
    assert set(await database.write(delete_session, TENANT, kept.session_id)) == {kept.job_id}
    after = await everything(database)
    lanes_left = after.pop("lanes")
    before.pop("lanes")
    assert [lane["running"] for lane in lanes_left] == [0]
    assert after == before


async def test_a_deleted_sessions_positions_are_not_given_out_again(database: Database) -> None:
    """A reader's cursor would skip what came under an old position."""
    opened = await ask(database)
    await answer(database, await take(database))
    last = max(row["position"] for row in await rows(database, transitions))
    await database.write(delete_session, TENANT, opened.session_id)
    await ask(database)
    (accepted,) = await rows(database, transitions)
    assert accepted["position"] > last


async def test_a_session_with_an_unfinished_job_stays(database: Database) -> None:
    opened = await ask(database)
    await kept(database, opened.session_id)
    claimed = await take(database)
    await kept(database, opened.session_id)
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=to_us(9))
    await kept(database, opened.session_id)


async def kept(database: Database, session_id: str) -> None:
    before = await everything(database)
    with pytest.raises(Conflict):
        await database.write(delete_session, TENANT, session_id)
    assert await everything(database) == before


async def test_deleting_and_asking_at_once_ends_well(database: Database, database_url: str) -> None:
    other = open_database(database_url)
    try:
        for _ in range(10):
            session = await database.write(create_session, NewSession("echo"), [])
            outcomes = await asyncio.gather(
                database.write(delete_session, TENANT, session["id"]),
                ask(other, session_id=session["id"]),
                ask(database, session_id=session["id"]),
                return_exceptions=True,
            )
            deleted = not isinstance(outcomes[0], Conflict)
            for outcome in outcomes[1:]:
                assert isinstance(outcome, NotFound) == deleted, outcomes
        await check_rules(database)
    finally:
        await other.close()
