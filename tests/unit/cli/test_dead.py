"""`chatmill dead`, `bulk`, `quarantine`, `queues`, `breakers`, and `jobs cancel` by filter."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.command import chatmill
from tests.unit.cli.event_logs import JOB_ID, SESSION_ID
from tests.unit.cli.fake_gateway import FakeGateway, Reply, Request
from tests.unit.cli.played_gateway import JOB, sent

LETTER_ID = "01a22e79-fa63-746d-bdb5-1623e3b9c1aa"
OTHER_ID = "01a22e79-fa63-746d-bdb5-1623e3b9c1bb"
RUN_ID = "01a22e79-fa63-746d-bdb5-1623e3b9c1cc"
ERROR = {"code": "provider_error", "message": "the model's\x1b[31m server failed", "retryable": True}
LETTER = {
    "id": LETTER_ID,
    "job_id": JOB_ID,
    "queue": "chat",
    "error": ERROR,
    "agent_framework": "langgraph",
    "model": None,
    "created_at": "2026-11-29T12:00:00.000Z",
    "state": "lying",
    "resolved_at": None,
}
ATTEMPT = {
    "attempt": 1,
    "worker": "w1",
    "model": None,
    "started_at": "2026-11-29T12:00:00.000Z",
    "ended_at": "2026-11-29T12:00:02.000Z",
    "ending": "fail",
    "error": ERROR,
    "error_class": "AgentInvocationError",
    "trace": "\n".join(f"line {number}" for number in range(30)),
    "shown_text": "It is\x07 ",
    "shown_tools": [{"id": "t", "name": "calculator", "status": "started", "args": {"n": 1}}],
}
RUN = {
    "id": RUN_ID,
    "action": "redrive",
    "filter": {"queue": "chat"},
    "reason": "",
    "rate": None,
    "state": "running",
    "total": 3,
    "done": 1,
    "skipped": 0,
    "created_at": "2026-11-29T12:00:00.000Z",
    "ended_at": None,
}


def bulk(path: str, *states: dict[str, Any]) -> FakeGateway:
    """A gateway whose bulk run goes through these states."""
    coming = [{**RUN, **state} for state in states]

    def begin(request: Request) -> Reply:
        if request.json().get("dry_run"):
            return Reply(200, {"dry_run": True, "count": 3, "ids": [LETTER_ID]})
        return Reply(202, {**RUN, "action": path.rsplit("/", 1)[1]})

    def look(request: Request) -> Reply:
        return Reply(200, coming.pop(0) if len(coming) > 1 else coming[0])

    return FakeGateway(replies={("POST", path): begin, ("GET", f"/v1/bulk-runs/{RUN_ID}"): look})


async def test_letters_are_listed_by_filter() -> None:
    reply = Reply(200, {"data": [LETTER], "next": None})
    options = ["--queue", "chat", "--code", "timeout", "--framework", "f", "--model", "m", "--since", "2h"]
    async with FakeGateway(replies={("GET", "/v1/dead-letters"): reply}) as gateway:
        table = await chatmill("--url", gateway.url, "dead", "list", *options, "--until", "1h")
        lines = await chatmill("--url", gateway.url, "dead", "list", "--state", "discarded", "--json")
    assert gateway.requests[0].target == (
        "/v1/dead-letters?limit=20&queue=chat&error_code=timeout&framework=f&model=m&since=2h&until=1h&state=lying"
    )
    assert gateway.requests[1].target == "/v1/dead-letters?limit=20&state=discarded"
    row = table.out.splitlines()[1]
    assert row.split()[0] == LETTER_ID
    assert row.rstrip().endswith("provider_error  the model's server failed")
    assert lines.lines == [LETTER]


async def test_a_letter_is_shown_with_every_attempt_and_without_controls() -> None:
    letter = {
        **LETTER,
        "job": {**JOB, "status": "dead"},
        "body": {"message": "How\x1b[2J much?"},
        "attempts": [ATTEMPT],
    }
    path = f"/v1/dead-letters/{LETTER_ID}"
    async with FakeGateway(replies={("GET", path): Reply(200, letter)}) as gateway:
        shown = await chatmill("--url", gateway.url, "dead", "show", LETTER_ID)
        raw = await chatmill("--url", gateway.url, "dead", "show", LETTER_ID, "--json")
    assert "\x1b" not in shown.out
    assert "\x07" not in shown.out
    for part in ("the model's server failed (provider_error)", "How much?", "attempt 1", "2.0 s", "w1", "It is "):
        assert part in shown.out, part
    assert '[calculator {"n":1}]' in shown.out
    assert "line 29" in shown.out
    assert "line 1\n" not in shown.out
    assert "18 lines above" in shown.out
    assert f"chatmill dead redrive {LETTER_ID}" in shown.err
    assert raw.lines == [letter]


@pytest.mark.parametrize(("verb", "done"), [("redrive", "redriven"), ("discard", "discarded")])
async def test_letters_are_decided_about_by_ids_and_a_refusal_stops_no_other(verb: str, done: str) -> None:
    replies = {
        ("POST", f"/v1/dead-letters/{LETTER_ID}/{verb}"): Reply(
            409, {"detail": f"this dead letter was {done} already"}
        ),
        ("POST", f"/v1/dead-letters/{OTHER_ID}/{verb}"): Reply(200, LETTER),
    }
    yes = ["--yes"] if verb == "discard" else []
    async with FakeGateway(replies=dict(replies)) as gateway:
        ended = await chatmill("--url", gateway.url, "dead", verb, LETTER_ID, OTHER_ID, *yes)
        one = await chatmill("--url", gateway.url, "dead", verb, OTHER_ID, "--json")
    assert (ended.code, ended.out) == (1, f"{OTHER_ID}  {done}\n")
    assert f"{LETTER_ID}: this dead letter was {done} already" in ended.err
    assert (one.code, one.lines) == (0, [LETTER])


@pytest.mark.parametrize(
    "arguments",
    [
        ["dead", "redrive"],
        ["dead", "redrive", LETTER_ID, "--all"],
        ["dead", "redrive", "--queue", "chat", "--all"],
        ["dead", "redrive", LETTER_ID, "--dry-run"],
        ["dead", "redrive", "--since", "yesterday"],
        ["dead", "redrive", "x"],
        ["dead", "discard", LETTER_ID, OTHER_ID],
        ["dead", "redrive", "--all", "--rate", "0"],
        ["jobs", "cancel"],
        ["jobs", "cancel", JOB_ID, "--queue", "chat"],
        ["quarantine", "drop", LETTER_ID, OTHER_ID],
        ["quarantine", "requeue", LETTER_ID, OTHER_ID, "--payload", "{}"],
        ["quarantine", "requeue", LETTER_ID, "--payload", "not json"],
        ["quarantine", "requeue", LETTER_ID, "--payload", "[]"],
        ["quarantine", "requeue", LETTER_ID, "--payload", "@/no/such/file"],
    ],
)
async def test_what_is_not_clearly_said_is_not_done(arguments: list[str]) -> None:
    async with FakeGateway() as gateway:
        ended = await chatmill("--url", gateway.url, *arguments)
    assert ended.code == 2, ended
    assert gateway.requests == []


async def test_a_bulk_run_is_watched_to_its_end() -> None:
    states = {"done": 2}, {"done": 2, "skipped": 1, "state": "finished"}
    async with bulk("/v1/dead-letters/redrive", *states) as gateway:
        ended = await chatmill("--url", gateway.url, "dead", "redrive", "--queue", "chat", "--rate", "5")
    assert (ended.code, ended.out) == (0, "2 of 3 redriven, 1 skipped\n")
    assert sent(gateway) == {"queue": "chat", "rate": 5}


async def test_a_dry_run_says_how_many_it_would_be() -> None:
    async with bulk("/v1/dead-letters/discard", {}) as gateway:
        said = await chatmill("--url", gateway.url, "dead", "discard", "--all", "--dry-run")
        raw = await chatmill("--url", gateway.url, "dead", "discard", "--all", "--dry-run", "--json")
    assert said.out == f"would discard 3 dead letters\n  {LETTER_ID}\n  and 2 more\n"
    assert raw.lines[0]["count"] == 3
    assert sent(gateway) == {"all": True, "dry_run": True}


@pytest.mark.parametrize(
    ("arguments", "path", "done"),
    [
        (["dead", "discard", "--all"], "/v1/dead-letters/discard", "discarded"),
        (["jobs", "cancel", "--queue", "chat"], "/v1/jobs/cancel", "cancelled or told to stop"),
    ],
)
async def test_much_is_thrown_away_only_with_a_yes(arguments: list[str], path: str, done: str) -> None:
    action = path.rsplit("/", 1)[1]
    async with bulk(path, {"action": action, "state": "finished", "done": 3}) as gateway:
        refused = await chatmill("--url", gateway.url, *arguments)
        begun = [request for request in gateway.requests if not request.json().get("dry_run")]
        done_it = await chatmill("--url", gateway.url, *arguments, "--yes")
    assert refused.code == 2
    assert "say --yes" in refused.err
    assert begun == []
    assert (done_it.code, done_it.out) == (0, f"3 of 3 {done}\n")


async def test_a_run_that_somebody_aborts_is_a_failure() -> None:
    async with bulk("/v1/dead-letters/redrive", {"state": "aborted"}) as gateway:
        ended = await chatmill("--url", gateway.url, "dead", "redrive", "--all", "--json")
    assert (ended.code, ended.lines[0]["state"]) == (1, "aborted")


async def test_a_gateway_that_goes_away_leaves_the_run_to_itself() -> None:
    def gone(request: Request) -> Reply | None:
        return None

    gateway = bulk("/v1/dead-letters/redrive", {})
    gateway.replies["GET", f"/v1/bulk-runs/{RUN_ID}"] = gone
    async with gateway:
        ended = await chatmill("--url", gateway.url, "dead", "redrive", "--all")
    assert ended.code == 3
    assert f"chatmill bulk show {RUN_ID}" in ended.err


async def test_jobs_are_cancelled_by_every_filter() -> None:
    async with bulk("/v1/jobs/cancel", {"action": "cancel", "state": "finished"}) as gateway:
        await chatmill(
            *("--url", gateway.url, "jobs", "cancel", "--status", "queued", "--session", SESSION_ID, "--model", "m"),
            *("--framework", "f", "--since", "1d", "--until", "1h", "--reason", "enough", "--yes"),
        )
    assert sent(gateway) == {
        "status": "queued",
        "session_id": SESSION_ID,
        "model": "m",
        "framework": "f",
        "since": "1d",
        "until": "1h",
        "reason": "enough",
    }


async def test_bulk_runs_are_listed_shown_and_aborted() -> None:
    replies = {
        ("GET", "/v1/bulk-runs"): Reply(200, {"data": [RUN], "next": None}),
        ("GET", f"/v1/bulk-runs/{RUN_ID}"): Reply(200, RUN),
        ("POST", f"/v1/bulk-runs/{RUN_ID}/abort"): Reply(200, {**RUN, "state": "aborted"}),
    }
    async with FakeGateway(replies=dict(replies)) as gateway:
        listed = await chatmill("--url", gateway.url, "bulk", "list", "--state", "running")
        shown = await chatmill("--url", gateway.url, "bulk", "show", RUN_ID)
        aborted = await chatmill("--url", gateway.url, "bulk", "abort", RUN_ID)
    assert listed.out.splitlines()[1].split()[:4] == [RUN_ID, "redrive", "running", "1/3"]
    assert "as fast as it goes" in shown.out
    assert (aborted.code, aborted.out) == (0, "1 of 3 redriven; aborted\n")


@pytest.mark.parametrize("state", ["finished", "running"])
async def test_a_run_that_had_ended_was_not_aborted(state: str) -> None:
    reply = Reply(200, {**RUN, "state": state})
    async with FakeGateway(replies={("POST", f"/v1/bulk-runs/{RUN_ID}/abort"): reply}) as gateway:
        assert (await chatmill("--url", gateway.url, "bulk", "abort", RUN_ID)).code == 1


def entry(payload: bytes, text: str | None) -> dict[str, Any]:
    return {
        "id": LETTER_ID,
        "queue": "chat",
        "reason": "not a message",
        "size": len(payload),
        "created_at": "2026-11-29T12:00:00.000Z",
        "state": "lying",
        "resolved_at": None,
        "payload": base64.b64encode(payload).decode(),
        "text": text,
    }


async def test_a_quarantined_message_is_shown_as_text_or_bytes_and_obeyed_by_no_terminal() -> None:
    path = f"/v1/quarantine/{LETTER_ID}"
    shown = []
    for payload, text in ((b"\xff\x1b[31m", None), (b"\x1b[31mred", "\x1b[31mred")):
        async with FakeGateway(replies={("GET", path): Reply(200, entry(payload, text))}) as gateway:
            shown.append((await chatmill("--url", gateway.url, "quarantine", "show", LETTER_ID)).out)
    assert "00000000  ff 1b 5b 33 31 6d " in shown[0]
    assert shown[1].endswith("\n\nred\n")
    assert "\x1b" not in "".join(shown)


async def test_quarantined_messages_are_listed_requeued_and_dropped(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"message": "from a file"}')
    replies: dict[tuple[str, str], Reply | Callable[[Request], Reply | None]] = {
        ("GET", "/v1/quarantine"): Reply(200, {"data": [entry(b"x", "x")], "next": None}),
        ("POST", f"/v1/quarantine/{LETTER_ID}/requeue"): Reply(200, entry(b"x", "x")),
        ("POST", f"/v1/quarantine/{LETTER_ID}/drop"): Reply(200, entry(b"x", "x")),
    }
    async with FakeGateway(replies=replies) as gateway:
        listed = await chatmill("--url", gateway.url, "quarantine", "list", "--queue", "chat")
        for payload, stdin in (('{"message":"a"}', ""), (f"@{tmp_path}/job.json", ""), ("-", '{"message":"stdin"}')):
            done = await chatmill(
                "--url", gateway.url, "quarantine", "requeue", LETTER_ID, "--payload", payload, stdin=stdin
            )
            assert (done.code, done.out) == (0, f"{LETTER_ID}  requeued\n")
        dropped = await chatmill("--url", gateway.url, "quarantine", "drop", LETTER_ID)
    assert listed.out.splitlines()[1].split()[0] == LETTER_ID
    bodies = [json.loads(one.body)["payload"]["message"] for one in gateway.requests if one.path.endswith("requeue")]
    assert bodies == ["a", "from a file", "stdin"]
    assert dropped.out == f"{LETTER_ID}  dropped\n"


async def test_queues_and_breakers_are_listed_and_let_go() -> None:
    queue = {"name": "chat", "queued": 2, "due": 1, "running": 0, "reason": "night"}
    paused = {**queue, "paused": True, "paused_at": "2026-11-29T12:00:00.000Z"}
    resumed = {**queue, "paused": False, "reason": None, "paused_at": None}
    times = {"opened_at": "2026-11-29T12:00:00.000Z", "probe_at": "2026-11-29T12:01:00.000Z"}
    breaker = {"name": "host/m", "failures": 5, "open": True, "held": 3, "last_error": ERROR, **times}
    replies = {
        ("GET", "/v1/queues"): Reply(200, {"data": [paused]}),
        ("POST", "/v1/queues/chat/pause"): Reply(200, paused),
        ("POST", "/v1/queues/chat/resume"): Reply(200, resumed),
        ("GET", "/v1/breakers"): Reply(200, {"data": [breaker]}),
        ("POST", "/v1/breakers/reset"): Reply(200, {"data": []}),
    }
    async with FakeGateway(replies=dict(replies)) as gateway:
        listed = await chatmill("--url", gateway.url, "queues", "list")
        said = await chatmill("--url", gateway.url, "queues", "pause", "chat", "--reason", "night")
        again = await chatmill("--url", gateway.url, "queues", "resume", "chat")
        breakers = await chatmill("--url", gateway.url, "breakers", "list")
        closed = await chatmill("--url", gateway.url, "breakers", "reset", "host/m")
    assert listed.out.splitlines()[1].split()[:4] == ["chat", "2", "1", "0"]
    assert "night" in listed.out
    assert "chat: paused since" in said.out
    assert again.out == "chat: not paused, 2 queued\n"
    assert breakers.out.splitlines()[1].split()[:4] == ["host/m", "open", "5", "3"]
    assert "\x1b" not in breakers.out
    assert closed.out == "closed\n"
    assert sent(gateway) == {"name": "host/m"}
