"""The command line's side of the HTTP API."""

from __future__ import annotations

import pytest

from cli import client as of_client
from cli.client import Client, Refused
from cli.failure import CommandFailed, GatewayUnreachable, WrongUsage
from tests.unit.cli.fake_gateway import FakeGateway, Reply, Request

PROBLEM = "application/problem+json"
JOBS = ("POST", "/v1/jobs")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_client, "PAUSE_S", 0.001)


async def test_a_refusal_is_one_sentence_with_its_field() -> None:
    problem = {"title": "Unprocessable", "status": 422, "detail": "the message is empty", "field": "message"}
    async with FakeGateway(replies={JOBS: Reply(422, problem, PROBLEM)}) as gateway, Client(gateway.url) as client:
        with pytest.raises(Refused, match=r"^message: the message is empty$") as refused:
            await client.submit({"message": ""})
    assert (refused.value.status, refused.value.exit_code) == (422, 1)


async def test_a_failure_without_words_is_told_by_its_status() -> None:
    async with FakeGateway(replies={JOBS: Reply(500, b"oops", "text/plain")}) as gateway, Client(gateway.url) as client:
        with pytest.raises(CommandFailed, match="HTTP 500"):
            await client.submit({})


@pytest.mark.parametrize("reply", [Reply(200, b"<html>", "text/html"), Reply(404, b"?", "text/html"), Reply(200, [])])
async def test_a_server_that_is_no_gateway_is_told_apart(reply: Reply) -> None:
    async with FakeGateway(replies={("GET", "/v1/jobs"): reply}) as gateway, Client(gateway.url) as client:
        with pytest.raises(GatewayUnreachable, match="is not chatmill"):
            await client.get("/v1/jobs")


async def test_a_job_whose_sending_broke_is_sent_again_under_its_id() -> None:
    sent = []

    def break_once(request: Request) -> Reply | None:
        sent.append(request.json())
        return Reply(202, {"id": "j"}) if len(sent) == 2 else None

    async with FakeGateway(replies={JOBS: break_once}) as gateway, Client(gateway.url) as client:
        assert await client.submit({"job_id": "j", "message": "hi"}) == {"id": "j"}
    assert sent == [{"job_id": "j", "message": "hi"}] * 2


async def test_a_new_session_is_asked_for_only_once() -> None:
    async with FakeGateway(replies={("POST", "/v1/sessions"): lambda _: None}) as gateway:
        async with Client(gateway.url) as client:
            with pytest.raises(GatewayUnreachable):
                await client.create_session({})
        assert len(gateway.requests) == 1


async def test_text_that_utf8_cannot_hold_is_replaced() -> None:
    async with FakeGateway(replies={JOBS: Reply(202, {"id": "j"})}) as gateway, Client(gateway.url) as client:
        await client.submit({"message": "a\udcff"})
        assert gateway.requests[0].json() == {"message": "a\ufffd"}


async def test_the_tenant_goes_with_every_request() -> None:
    async with FakeGateway(replies={("GET", "/x"): Reply(200, {})}) as gateway, Client(gateway.url, "acme") as client:
        await client.get("/x", a=1, b=None)
        assert gateway.requests[0].headers["x-chatmill-tenant"] == "acme"
        assert gateway.requests[0].target == "/x?a=1"


async def test_a_long_list_is_read_in_pages_up_to_its_limit() -> None:
    def page(request: Request) -> Reply:
        if "before" in request.target:
            return Reply(200, {"data": [{"id": "3"}], "next": None})
        return Reply(200, {"data": [{"id": "1"}, {"id": "2"}], "next": "2"})

    async with FakeGateway(replies={("GET", "/v1/jobs"): page}) as gateway, Client(gateway.url) as client:
        assert [job["id"] for job in await client.items("/v1/jobs", limit=300)] == ["1", "2", "3"]
        assert len(await client.items("/v1/jobs", limit=2)) == 2
        assert [request.target for request in gateway.requests] == [
            "/v1/jobs?limit=200",
            "/v1/jobs?limit=200&before=2",
            "/v1/jobs?limit=2",
        ]


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://host", "http://", "nonsense"])
def test_an_address_that_is_none_is_wrong_usage(url: str) -> None:
    with pytest.raises(WrongUsage, match="http://host:port"):
        Client(url)


async def test_a_proxy_in_the_environment_is_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with FakeGateway(replies={("GET", "/x"): Reply(200, {"ok": True})}) as gateway, Client(gateway.url) as client:
        assert await client.get("/x") == {"ok": True}
