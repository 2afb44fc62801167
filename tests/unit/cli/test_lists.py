"""`chatmill jobs` and `chatmill sessions`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.command import chatmill
from tests.unit.cli.event_logs import JOB_ID, SESSION_ID, error
from tests.unit.cli.fake_gateway import FakeGateway, Reply
from tests.unit.cli.played_gateway import JOB, SESSION, sent


async def test_jobs_are_listed_as_a_table_or_as_json_lines() -> None:
    reply = Reply(200, {"data": [{**JOB, "error_code": "timeout"}], "next": None})
    async with FakeGateway(replies={("GET", "/v1/jobs"): reply}) as gateway:
        table = await chatmill("--url", gateway.url, "jobs", "--status", "dead", "--session", SESSION_ID)
        lines = await chatmill("--url", gateway.url, "jobs", "--json", "--limit", "3")
    assert gateway.requests[0].target == f"/v1/jobs?limit=20&status=dead&session_id={SESSION_ID}"
    assert gateway.requests[1].target == "/v1/jobs?limit=3"
    heading, row = table.out.splitlines()
    assert heading.split() == ["job", "status", "queue", "accepted", "took", "error"]
    assert row.split()[0] == JOB_ID
    assert row.rstrip().endswith("1 min 30 s  timeout")
    assert lines.lines[0]["id"] == JOB_ID


async def test_a_list_of_nothing_prints_nothing_to_stdout() -> None:
    reply = Reply(200, {"data": [], "next": None})
    async with FakeGateway(replies={("GET", "/v1/jobs"): reply, ("GET", "/v1/sessions"): reply}) as gateway:
        for command in ("jobs", "sessions"):
            assert (await chatmill("--url", gateway.url, command)).out == ""


async def test_a_job_is_shown_with_its_answer_and_without_its_controls() -> None:
    async with FakeGateway(replies={("GET", f"/v1/jobs/{JOB_ID}"): Reply(200, JOB)}) as gateway:
        shown = await chatmill("--url", gateway.url, "jobs", "show", JOB_ID)
        raw = await chatmill("--url", gateway.url, "jobs", "show", JOB_ID, "--json")
    assert shown.out.endswith("\n\nHello there.\n")
    assert "1 min 30 s" in shown.out
    assert raw.lines == [JOB]


async def test_a_dead_job_is_shown_with_its_error() -> None:
    dead = {**JOB, "status": "dead", "result": None, "error": {**error(), "dead_letter_id": "d1"}}
    async with FakeGateway(replies={("GET", f"/v1/jobs/{JOB_ID}"): Reply(200, dead)}) as gateway:
        shown = await chatmill("--url", gateway.url, "jobs", "show", JOB_ID)
    assert "the model's server failed (provider_error)" in shown.out
    assert "d1" in shown.out


@pytest.mark.parametrize(
    ("status", "out", "code"), [("running", "stopping", 0), ("cancelled", "cancelled", 0), ("finished", "finished", 1)]
)
async def test_cancelling_says_what_became_of_the_job(status: str, out: str, code: int) -> None:
    reply = Reply(200, {**JOB, "status": status})
    async with FakeGateway(replies={("POST", f"/v1/jobs/{JOB_ID}/cancel"): reply}) as gateway:
        ended = await chatmill("--url", gateway.url, "jobs", "cancel", JOB_ID)
    assert (ended.code, ended.out) == (code, f"{out}\n")


async def test_sessions_are_made_listed_and_deleted() -> None:
    replies = {
        ("POST", "/v1/sessions"): Reply(201, SESSION),
        ("GET", "/v1/sessions"): Reply(200, {"data": [SESSION], "next": None}),
        ("DELETE", f"/v1/sessions/{SESSION_ID}"): Reply(204),
    }
    async with FakeGateway(replies=dict(replies)) as gateway:
        made = await chatmill("--url", gateway.url, "sessions", "new", "--model", "m", "--param", "seed=1")
        listed = await chatmill("--url", gateway.url, "sessions")
        deleted = await chatmill("--url", gateway.url, "sessions", "delete", SESSION_ID, "--json")
    assert made.out == f"{SESSION_ID}\n"
    assert sent(gateway) == {"model": "m", "parameters": {"seed": 1}}
    assert listed.out.splitlines()[1].split()[0] == SESSION_ID
    assert deleted.lines == [{"id": SESSION_ID, "deleted": True}]


async def test_a_session_is_shown_as_the_branch_that_is_talked_on() -> None:
    call = {"id": "t1", "name": "calculator", "args": {"n": 1}}
    messages = [
        message("1", "user", "How much?"),
        message("x", "assistant", "another branch"),
        {**message("2", "assistant", ""), "tool_calls": [call]},
        message("3", "tool", "2\nexactly"),
        {**message("4", "assistant", "It is\x07 2."), "status": "cancelled"},
    ]
    session = {**SESSION, "messages": messages, "active_branch": ["1", "2", "3", "4"]}
    async with FakeGateway(replies={("GET", f"/v1/sessions/{SESSION_ID}"): Reply(200, session)}) as gateway:
        shown = await chatmill("--url", gateway.url, "sessions", "show", SESSION_ID)
    assert shown.out.partition("\n\n")[2] == (
        'user\nHow much?\n\nassistant\n[calculator {"n":1}]\n[result: 2 exactly]\n\nassistant (stopped)\nIt is 2.\n'
    )


def message(message_id: str, role: str, content: str) -> dict[str, Any]:
    return {"id": message_id, "role": role, "content": content, "tool_calls": None, "status": "complete"}
