"""`chatmill submit` and `chatmill follow`: what they send, print and return."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.command import chatmill
from tests.unit.cli.event_logs import JOB_ID, SESSION_ID, LogBuilder, answer, error, short_log, tool
from tests.unit.cli.fake_gateway import FakeGateway, Reply
from tests.unit.cli.played_gateway import JOB, accepting, sent


async def test_submit_prints_the_id_and_how_to_follow() -> None:
    async with accepting() as gateway:
        ended = await chatmill("--url", gateway.url, "submit", "Hello")
    job_id = ended.out.strip()
    assert (ended.code, ended.err) == (0, f"[read the answer with: chatmill follow {job_id}]\n")
    assert sent(gateway) == {"message": "Hello"}


async def test_submit_sends_what_the_options_say() -> None:
    options = ["--session", SESSION_ID, "--model", "m", "--system", "s", "--tool", "a", "--tool", "b", "--queue", "q"]
    options += ["--priority", "-3", "--framework", "echo", "--language", "pt-BR", "--param", "seed=1", "--json"]
    async with accepting() as gateway:
        ended = await chatmill("--url", gateway.url, "submit", "Hi", *options, "--job-id", JOB_ID)
    assert ended.lines[0]["id"] == JOB_ID
    assert sent(gateway) == {
        "message": "Hi",
        "session_id": SESSION_ID,
        "model": "m",
        "system": "s",
        "tools": ["a", "b"],
        "queue": "q",
        "priority": -3,
        "agent_framework": "echo",
        "language": "pt-BR",
        "parameters": {"seed": 1},
    }


async def test_submit_reads_the_message_from_stdin_and_may_allow_no_tools() -> None:
    async with accepting() as gateway:
        await chatmill("--url", gateway.url, "submit", "-", "--tool", "", stdin="two\nlines\n")
    assert sent(gateway) == {"message": "two\nlines", "tools": []}


async def test_submit_follows_to_the_end() -> None:
    async with accepting(short_log("It is\n391.")) as gateway:
        ended = await chatmill("--url", gateway.url, "submit", "17 * 23?", "--follow")
    assert (ended.code, ended.out, ended.err) == (0, "It is\n391.\n", "")


async def test_follow_prints_json_lines_and_nothing_else() -> None:
    log = short_log()
    async with FakeGateway(logs={JOB_ID: log}) as gateway:
        ended = await chatmill("--url", gateway.url, "follow", JOB_ID, "--json")
        later = await chatmill("--url", gateway.url, "follow", JOB_ID, "--json", "--after", "1-2")
    assert ended.lines == [{"id": str(event_id), **event} for event_id, event in log]
    assert later.lines == ended.lines[3:]
    assert (ended.code, ended.err) == (0, "")


async def test_follow_after_a_cursor_prints_the_rest() -> None:
    async with FakeGateway(logs={JOB_ID: short_log("One two three")}) as gateway:
        ended = await chatmill("--url", gateway.url, "follow", JOB_ID, "--after", "1-2")
    assert ended.out == " two three\n"


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("dead", 1)])
async def test_follow_behind_the_end_asks_how_it_ended(status: str, code: int) -> None:
    log, reply = short_log(), Reply(200, {**JOB, "status": status})
    async with FakeGateway(logs={JOB_ID: log}, replies={("GET", f"/v1/jobs/{JOB_ID}"): reply}) as gateway:
        ended = await chatmill("--url", gateway.url, "follow", JOB_ID, "--json", "--after", str(log[-1][0]))
    assert (ended.code, ended.out) == (code, "")


@pytest.mark.parametrize("kind", ["failed", "cancelled"])
async def test_a_job_without_an_answer_makes_exit_code_1(kind: str) -> None:
    log = LogBuilder()
    log.opens("started", attempt=1, worker="w")
    fields: dict[str, Any] = {"error": error(), "dead_letter_id": "d"}
    log.opens(kind, **(fields if kind == "failed" else {"reason": "r", "response": [], "message_ids": []}))
    async with FakeGateway(logs={JOB_ID: log.log}) as gateway:
        ended = await chatmill("--url", gateway.url, "follow", JOB_ID)
    assert (ended.code, ended.out) == (1, "")
    assert kind in ended.err


async def test_tool_notes_do_not_touch_the_answer() -> None:
    log = LogBuilder()
    log.opens("started", attempt=1, worker="w")
    log.adds("tool", tool=tool("started"))
    log.adds("tool", tool=tool("finished"))
    log.adds("text", text="2")
    log.opens("final", outcome="ok", response=[answer("2")], usage=None, message_ids=["m"])
    async with accepting(log.log) as gateway:
        ended = await chatmill("--url", gateway.url, "submit", "1 + 1?", "-f")
    assert (ended.out, ended.err) == ("2\n", '[calculator {"n":1}]\n[calculator: 2]\n')
