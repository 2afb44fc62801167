"""Following a job over connections that break."""

from __future__ import annotations

import io
from contextlib import aclosing
from functools import partial
from random import Random
from typing import Any

import pytest

from cli import follower as following
from cli.answer import AGAIN, AnswerPrinter
from cli.client import Client, Refused
from cli.failure import CommandFailed, GatewayUnreachable
from cli.follower import Follower
from cli.safe_text import safe_text
from cli.screen import Screen
from schemas.fold import Fold
from schemas.job_event import EventId
from tests.unit.cli.event_logs import JOB_ID, LogBuilder, answer, error, random_log, short_log
from tests.unit.cli.fake_gateway import FakeGateway, Reply, Request

EVENTS = f"/v1/jobs/{JOB_ID}/events"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(following, "LAST_PAUSE_S", 0.002)


async def collect(follower: Follower) -> list[tuple[EventId, dict[str, object]]]:
    async with aclosing(follower.events()) as events:
        return [entry async for entry in events]


async def test_every_event_comes_once_and_in_order_however_often_the_connection_breaks() -> None:
    for seed in range(20):
        random, fold = Random(seed), Fold()
        log = random_log(random)
        for entry in log:
            fold.apply(*entry)
        # Anywhere: in the head of the answer, or in an event.
        cuts = iter([random.randrange(1, 700) for _ in range(15)])
        gateway = FakeGateway(logs={JOB_ID: log}, cut=partial(next, cuts, None), random=random)
        seen, text, output = await follow_and_print(gateway)
        assert (seen, text) == (log, fold.text), seed
        if log[-1][1]["kind"] != "failed":
            assert output.split(f"{AGAIN}\n")[-1].rstrip("\n") == safe_text(fold.text).rstrip("\n"), seed


async def follow_and_print(gateway: FakeGateway) -> tuple[list[tuple[EventId, dict[str, Any]]], str, str]:
    """The events that came, the text they fold to, and what was printed of them."""
    out, seen = io.StringIO(), []
    async with gateway, Client(gateway.url) as client:
        follower, printer = Follower(client, JOB_ID, reached=True), AnswerPrinter(Screen(out, io.StringIO()))
        async with aclosing(follower.events()) as events:
            async for event_id, event in events:
                seen.append((event_id, event))
                printer.show(event_id, event, follower.fold)
    return seen, follower.fold.text, out.getvalue()


async def test_it_goes_on_behind_the_last_event_it_has_seen() -> None:
    log = short_log("a b c d")
    cuts = iter([900])
    async with FakeGateway(logs={JOB_ID: log}, cut=lambda: next(cuts, None)) as gateway, Client(gateway.url) as client:
        assert await collect(Follower(client, JOB_ID)) == log
        first, second = (request.headers.get("last-event-id") for request in gateway.requests)
    assert first is None
    assert second in {str(event_id) for event_id, _ in log}


async def test_a_cursor_of_ones_own_leaves_out_what_is_before_it() -> None:
    log = short_log("a b c d")
    async with FakeGateway(logs={JOB_ID: log}) as gateway, Client(gateway.url) as client:
        assert await collect(Follower(client, JOB_ID, after=log[3][0])) == log[4:]


async def test_a_cursor_at_the_end_finds_nothing_more() -> None:
    log = short_log()
    async with FakeGateway(logs={JOB_ID: log}) as gateway, Client(gateway.url) as client:
        assert await collect(Follower(client, JOB_ID, after=log[-1][0])) == []


async def test_a_redriven_job_is_followed_behind_its_earlier_failure() -> None:
    log = LogBuilder()
    log.opens("queued", queue="chat", session_id="s")
    log.opens("failed", error=error(), dead_letter_id="d")
    log.opens("queued", queue="chat", session_id="s")
    log.opens("final", outcome="ok", response=[answer("Yes")], usage=None, message_ids=["m"])
    async with FakeGateway(logs={JOB_ID: log.log}) as gateway, Client(gateway.url) as client:
        follower = Follower(client, JOB_ID)
        assert await collect(follower) == log.log
    assert follower.fold.text == "Yes"


async def test_a_gateway_that_was_never_there_is_told_at_once() -> None:
    async with FakeGateway() as gateway:
        url = gateway.url
    async with Client(url) as client:
        with pytest.raises(GatewayUnreachable, match=r"nobody answers at .*chatmill up"):
            await collect(Follower(client, JOB_ID))


async def test_a_gateway_that_stays_away_is_given_up() -> None:
    troubles: list[str] = []
    async with FakeGateway() as gateway:
        url = gateway.url
    async with Client(url) as client:
        follower = Follower(client, JOB_ID, reached=True, on_trouble=troubles.append, give_up_s=0.05)
        with pytest.raises(GatewayUnreachable, match="lost contact"):
            await collect(follower)
    assert len(troubles) == 1


async def test_an_unknown_job_is_refused() -> None:
    reply = Reply(404, {"detail": "there is no such job"}, "application/problem+json")
    async with FakeGateway(replies={("GET", EVENTS): reply}) as gateway, Client(gateway.url) as client:
        with pytest.raises(Refused, match="there is no such job"):
            await collect(Follower(client, JOB_ID))


async def test_a_gateway_that_is_not_itself_for_a_moment_is_asked_again() -> None:
    log, answers = short_log("a b"), iter([503, 502])

    def stumble(request: Request) -> Reply:
        status = next(answers, None)
        gateway.logs = {} if status else {JOB_ID: log}
        return Reply(status or 500, {"detail": "not now"}, "application/problem+json")

    cuts = iter([600])
    async with FakeGateway(logs={JOB_ID: log}, cut=lambda: next(cuts, None)) as gateway, Client(gateway.url) as client:
        follower = Follower(client, JOB_ID)
        async with aclosing(follower.events()) as events:
            await anext(events)
            gateway.logs, gateway.replies = {}, {("GET", EVENTS): stumble}
            assert [entry async for entry in events] == log[1:]


@pytest.mark.parametrize("body", [b"id: 1-1\ndata: no json\n\n", b"id: x\ndata: {}\n\n", b"data: [1]\n\n"])
async def test_what_is_no_event_is_not_taken_for_one(body: bytes) -> None:
    reply = Reply(200, body, "text/event-stream")
    async with FakeGateway(replies={("GET", EVENTS): reply}) as gateway, Client(gateway.url) as client:
        with pytest.raises(CommandFailed, match="not an event"):
            await collect(Follower(client, JOB_ID))


async def test_a_server_that_is_no_gateway_is_told_apart() -> None:
    reply = Reply(200, b"<html>", "text/html")
    async with FakeGateway(replies={("GET", EVENTS): reply}) as gateway, Client(gateway.url) as client:
        with pytest.raises(GatewayUnreachable, match="is not chatmill"):
            await collect(Follower(client, JOB_ID))
