"""`chatmill chat` with its lines from a pipe."""

from __future__ import annotations

import pytest

from tests.unit.cli.command import chatmill
from tests.unit.cli.event_logs import SESSION_ID, LogBuilder, error, short_log
from tests.unit.cli.fake_gateway import Reply
from tests.unit.cli.played_gateway import JOB, SESSION, accepting, sent


async def test_chat_answers_each_line_in_one_session() -> None:
    async with accepting(short_log("Yes.")) as gateway:
        ended = await chatmill("--url", gateway.url, "chat", "--model", "m", stdin="First\n\nSecond\n//third\n")
    assert (ended.code, ended.out, ended.err) == (0, "Yes.\nYes.\nYes.\n", "")
    assert [sent(gateway, number) for number in (-3, -2, -1)] == [
        {"message": "First", "model": "m"},
        {"message": "Second", "model": "m", "session_id": SESSION_ID},
        {"message": "/third", "model": "m", "session_id": SESSION_ID},
    ]


async def test_chat_answers_the_last_message_again_and_begins_anew() -> None:
    async with accepting() as gateway:
        ended = await chatmill("--url", gateway.url, "chat", stdin="First\n/again\n/new\nSecond\n/session\n/quit\nno\n")
    assert (ended.code, ended.err) == (0, f"[a new session]\n[{SESSION_ID}]\n")
    assert [sent(gateway, number) for number in (-3, -2, -1)] == [
        {"message": "First"},
        {"reply_to": JOB["user_message_id"], "session_id": SESSION_ID},
        {"message": "Second"},
    ]


async def test_chat_finds_the_last_message_of_a_session_it_goes_on_with() -> None:
    messages = [
        {"id": "1", "role": "user"},
        {"id": "2", "role": "assistant"},
        {"id": "3", "role": "user"},
    ]
    session = {**SESSION, "messages": messages, "active_branch": ["1", "2"]}
    async with accepting() as gateway:
        gateway.replies["GET", f"/v1/sessions/{SESSION_ID}"] = Reply(200, session)
        await chatmill("--url", gateway.url, "chat", "--session", SESSION_ID, stdin="/again\n")
    assert sent(gateway) == {"reply_to": "1", "session_id": SESSION_ID}


async def test_chat_prints_json_lines() -> None:
    async with accepting(short_log("a b")) as gateway:
        ended = await chatmill("--url", gateway.url, "chat", "--json", stdin="First\n/help\n")
    assert [line["kind"] for line in ended.lines] == ["queued", "started", "text", "text", "final"]
    assert "/again" in ended.err


@pytest.mark.parametrize(("typed", "said"), [("/nonsense", "no command /nonsense"), ("/again", "nothing to answer")])
async def test_chat_refuses_a_command_it_cannot_carry_out(typed: str, said: str) -> None:
    async with accepting() as gateway:
        ended = await chatmill("--url", gateway.url, "chat", stdin=f"{typed}\n")
    assert (ended.code, ended.out) == (1, "")
    assert said in ended.err


async def test_chat_returns_1_if_an_answer_failed() -> None:
    log = LogBuilder()
    log.opens("failed", error=error(), dead_letter_id="d")
    async with accepting(log.log) as gateway:
        ended = await chatmill("--url", gateway.url, "chat", stdin="First\n")
    assert ended.code == 1
