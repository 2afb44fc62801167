"""Messages are a tree, of which one branch is being talked on."""

from __future__ import annotations

import pytest

from schemas.agent_message import AgentMessage, ChatMessage
from schemas.errors import InvalidRequest, NotFound
from schemas.ids import new_id
from storage.clock import to_us
from storage.database import Database
from storage.jobs.accept import Accepted
from storage.jobs.cancel import request_cancel
from storage.jobs.claim import Claim
from storage.jobs.settle import fail, finish, lapse
from storage.messages import read_branch
from storage.sessions import change_session, get_messages
from storage.tables import messages, sessions
from tests.integration.storage.acts import (
    BROKEN,
    HOPELESS,
    TENANT,
    again,
    answer,
    ask,
    pass_time,
    row,
    rows,
    take,
)
from tests.integration.storage.rules import check_rules


async def id_of(database: Database, content: str) -> str:
    return str((await row(database, messages, content=content))["id"])


async def history(database: Database, claimed: Claim) -> list[str]:
    branch = await database.read(read_branch, TENANT, claimed.session_id, claimed.history_leaf)
    return [message.content for message in branch]


async def turn(database: Database, message: str, reply: str, opened: Accepted | None = None) -> Accepted:
    """One question and its answer."""
    accepted = await ask(database, message, session_id=opened.session_id if opened else None)
    await answer(database, await take(database), reply)
    return accepted


async def test_a_conversation_is_one_branch(database: Database) -> None:
    opened = await turn(database, "u1", "a1")
    await turn(database, "u2", "a2", opened)
    await ask(database, "u3", session_id=opened.session_id)
    assert await history(database, await take(database)) == ["u1", "a1", "u2", "a2"]


async def test_a_branch_keeps_calls_and_their_results(database: Database) -> None:
    opened = await ask(database, "u1")
    claimed = await take(database)
    response = [
        AgentMessage.assistant("", [{"id": "c", "name": "t", "args": {"text": "é\u2028"}}]),
        AgentMessage(role="tool", content="r", tool_call_id="c"),
        AgentMessage.assistant("a1"),
    ]
    await database.write(finish, claimed.job_id, claimed.epoch, response, None)
    leaf = (await row(database, sessions))["active_leaf"]
    branch = await database.read(read_branch, TENANT, opened.session_id, leaf)
    assert branch == [ChatMessage(role="user", content="u1"), *(ChatMessage(**m.model_dump()) for m in response)]


async def test_answering_again_makes_a_sibling(database: Database) -> None:
    opened = await turn(database, "u1", "a1")
    await turn(database, "u2", "a2", opened)
    question = await id_of(database, "u2")
    await again(database, opened, question)
    claimed = await take(database)
    assert (claimed.user_message, await history(database, claimed)) == ("u2", ["u1", "a1"])
    await answer(database, claimed, "a2 again")
    siblings = await rows(database, messages, parent_id=question)
    assert [message["content"] for message in siblings] == ["a2", "a2 again"]
    assert (await row(database, sessions))["active_leaf"] == await id_of(database, "a2 again")
    assert len(await rows(database, messages, role="user")) == 2, "the user's text is there once"
    await check_rules(database)


async def test_answering_an_earlier_message_again_leaves_the_later_turns_on_their_branch(database: Database) -> None:
    opened = await turn(database, "u1", "a1")
    await turn(database, "u2", "a2", opened)
    await again(database, opened, await id_of(database, "u1"))
    claimed = await take(database)
    assert await history(database, claimed) == []
    await answer(database, claimed, "a1 again")
    await ask(database, "u3", session_id=opened.session_id)
    assert await history(database, await take(database)) == ["u1", "a1 again"]
    old = await database.read(read_branch, TENANT, opened.session_id, await id_of(database, "a2"))
    assert [message.content for message in old] == ["u1", "a1", "u2", "a2"]
    await check_rules(database)


@pytest.mark.parametrize("ending", ["cancel", "lapse"])
async def test_a_message_that_was_never_claimed_gets_its_place_when_it_is_answered_again(
    database: Database, ending: str
) -> None:
    opened = await turn(database, "u1", "a1")
    queued = await ask(database, "u2", session_id=opened.session_id, deadline_s=5)
    if ending == "cancel":
        await database.write(request_cancel, TENANT, queued.job_id, "user")
    else:
        await database.write(pass_time, 6)
        await database.write(lapse, queued.job_id, 0)
    await turn(database, "u3", "a3", opened)
    await again(database, opened, await id_of(database, "u2"))
    claimed = await take(database)
    assert (claimed.user_message, await history(database, claimed)) == ("u2", ["u1", "a1", "u3", "a3"])
    await answer(database, claimed, "a2")
    await ask(database, "u4", session_id=opened.session_id)
    assert await history(database, await take(database)) == ["u1", "a1", "u3", "a3", "u2", "a2"]
    await check_rules(database)


async def test_what_failed_or_said_nothing_is_no_history(database: Database) -> None:
    opened = await turn(database, "u1", "a1")
    await ask(database, "failed", session_id=opened.session_id)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, HOPELESS, delay_us=0)
    await ask(database, "cancelled", session_id=opened.session_id)
    claimed = await take(database)
    await database.write(request_cancel, TENANT, claimed.job_id, "user")
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0)
    await ask(database, "u2", session_id=opened.session_id)
    assert await history(database, await take(database)) == ["u1", "a1"]


async def test_a_retry_sees_the_users_text_once(database: Database) -> None:
    opened = await turn(database, "u1", "a1")
    await ask(database, "u2", session_id=opened.session_id)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=to_us(0))
    claimed = await take(database)
    assert (claimed.user_message, await history(database, claimed)) == ("u2", ["u1", "a1"])
    assert [message["content"] for message in await rows(database, messages, role="user")] == ["u1", "u2"]


async def test_a_branch_can_be_chosen(database: Database) -> None:
    opened = await turn(database, "u1", "a1")
    await again(database, opened, await id_of(database, "u1"))
    await answer(database, await take(database), "a1 again")
    changed = await database.write(
        change_session, TENANT, opened.session_id, {"active_leaf": await id_of(database, "a1")}
    )
    assert changed["active_leaf"] == await id_of(database, "a1")
    await ask(database, "u2", session_id=opened.session_id)
    assert await history(database, await take(database)) == ["u1", "a1"]


async def test_only_a_placed_message_of_the_session_can_be_the_active_leaf(database: Database) -> None:
    opened = await turn(database, "u1", "a1")
    await turn(database, "another session", "a")
    await ask(database, "queued", session_id=opened.session_id)
    for message_id in (await id_of(database, "another session"), await id_of(database, "queued"), new_id()):
        with pytest.raises(NotFound) as refusal:
            await database.write(change_session, TENANT, opened.session_id, {"active_leaf": message_id})
        assert refusal.value.field == "active_leaf"
    await check_rules(database)


async def test_a_branch_must_not_end_in_an_open_call(database: Database) -> None:
    opened = await ask(database, "u1")
    claimed = await take(database)
    calls = [AgentMessage.assistant("", [{"id": name, "name": "t", "args": {}} for name in ("c1", "c2")])]
    results = [AgentMessage(role="tool", content=name, tool_call_id=name) for name in ("c1", "c2")]
    await database.write(finish, claimed.job_id, claimed.epoch, [*calls, *results, AgentMessage.assistant("end")], None)
    for content in ("", "c1"):
        leaf = await id_of(database, content)
        with pytest.raises(InvalidRequest):
            await database.write(change_session, TENANT, opened.session_id, {"active_leaf": leaf})
    for content in ("c2", "end", "u1"):
        leaf = await id_of(database, content)
        await database.write(change_session, TENANT, opened.session_id, {"active_leaf": leaf})


async def test_messages_come_in_the_order_they_were_made_whatever_the_clocks_of_workers_say(database: Database) -> None:
    opened = await ask(database, "u1")
    claimed = await take(database)
    response = [AgentMessage.assistant(f"part {number}") for number in range(20)]
    await database.write(finish, claimed.job_id, claimed.epoch, response, None)
    found = await database.read(get_messages, TENANT, opened.session_id)
    assert [message["content"] for message in found] == ["u1", *(f"part {number}" for number in range(20))]


async def test_a_foreign_branch_is_empty(database: Database) -> None:
    opened = await turn(database, "u1", "a1")
    other = await turn(database, "u2", "a2")
    leaf = await id_of(database, "a1")
    assert await database.read(read_branch, "other", opened.session_id, leaf) == []
    assert await database.read(read_branch, TENANT, other.session_id, leaf) == []
    assert await database.read(read_branch, TENANT, opened.session_id, None) == []
    assert await database.read(get_messages, "other", opened.session_id) == []


async def test_a_long_conversation_is_read_whole(database: Database) -> None:
    opened = await ask(database, "u1")
    claimed = await take(database)
    response = [AgentMessage.assistant(str(number)) for number in range(1500)]
    await database.write(finish, claimed.job_id, claimed.epoch, response, None)
    leaf = (await row(database, sessions))["active_leaf"]
    assert len(await database.read(read_branch, TENANT, opened.session_id, leaf)) == 1501


@pytest.mark.parametrize(
    "text", ["", " ", "naïve 🙂 \u2028 \ufffd", "x" * 200_000, "'; DROP TABLE jobs; --", "%s :name ?"]
)
async def test_any_text_comes_back_as_it_went_in(database: Database, text: str) -> None:
    question = text if text.strip() else "a question"
    await ask(database, question, metadata={"text": text[:1000]})
    claimed = await take(database)
    assert claimed.user_message == question
    assert claimed.job.metadata == {"text": text[:1000]}
    await answer(database, claimed, text)
    assert (await row(database, messages, role="assistant"))["content"] == text
