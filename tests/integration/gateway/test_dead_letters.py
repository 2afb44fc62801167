"""Dead letters over HTTP, and the streams of those who follow a job through its death."""

from __future__ import annotations

import asyncio

import pytest

from schemas.job_event import EventId
from storage.event_log import EventLog
from storage.jobs.redrive import redrive
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.conftest import ServeGateway
from tests.integration.gateway.dying import dead_job, dead_letter
from tests.integration.gateway.played import PlayedWorker
from tests.integration.gateway.test_tenants import OTHER, UNKNOWN


async def test_a_dead_letter_is_listed_and_shown_with_all_that_is_known(
    client: GatewayClient, worker: PlayedWorker
) -> None:
    job = await dead_job(client, worker, model="demo-fast", metadata={"ticket": 7})
    page = await client.get("/v1/dead-letters")
    (letter,) = page["data"]
    assert page["next"] is None
    assert letter["id"] == job["error"]["dead_letter_id"]
    assert (letter["job_id"], letter["state"], letter["model"]) == (job["id"], "lying", "demo-fast")
    assert letter["error"] == {"code": "provider_error", "message": "the provider failed", "retryable": False}
    shown = await client.get(f"/v1/dead-letters/{letter['id']}")
    assert shown["job"]["status"] == "dead"
    assert (shown["body"]["message"], shown["body"]["metadata"]) == ("hello", {"ticket": 7})
    (attempt,) = shown["attempts"]
    assert (attempt["attempt"], attempt["worker"], attempt["ending"]) == (1, "played", "fail")
    assert attempt["error"]["code"] == "provider_error"


async def test_letters_are_listed_by_filter_and_page_by_page(client: GatewayClient, worker: PlayedWorker) -> None:
    ids = [await dead_letter(client, worker) for _ in range(3)]
    bulk = await dead_letter(client, worker, queue="bulk", agent_framework="echo", model="demo-fast")
    for query in ("queue=bulk", "framework=echo", "model=demo-fast"):
        assert [one["id"] for one in (await client.get(f"/v1/dead-letters?{query}"))["data"]] == [bulk]
    assert (await client.get("/v1/dead-letters?error_code=timeout"))["data"] == []
    assert (await client.get("/v1/dead-letters?until=1h"))["data"] == []
    assert len((await client.get("/v1/dead-letters?since=1h&error_code=provider_error"))["data"]) == 4
    page = await client.get("/v1/dead-letters?limit=2&queue=chat")
    assert [one["id"] for one in page["data"]] == [ids[2], ids[1]]
    rest = await client.get(f"/v1/dead-letters?limit=2&queue=chat&before={page['next']}")
    assert ([one["id"] for one in rest["data"]], rest["next"]) == ([ids[0]], None)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("since=yesterday", "since"),
        ("until=2026-13-01", "until"),
        ("since=" + "9" * 500, "since"),
        ("queue=a%20b", "queue"),
        ("state=dead", "state"),
        ("error_code=", "error_code"),
        ("model=" + "x" * 129, "model"),
        ("limit=0", "limit"),
        ("before=x", "before"),
    ],
)
async def test_a_wrong_filter_is_named(client: GatewayClient, query: str, field: str) -> None:
    response = await client.http.get(f"/v1/dead-letters?{query}")
    assert (response.status_code, response.json()["field"]) == (422, field)


async def test_odd_characters_in_a_filter_find_nothing(client: GatewayClient) -> None:
    for query in ("error_code=%00", "model=%ED%A0%80", "framework=%27%20OR%201=1--", "since=0001-01-01"):
        assert (await client.get(f"/v1/dead-letters?{query}"))["data"] == []


async def test_a_redriven_job_runs_again_and_cannot_be_redriven_twice(
    client: GatewayClient, worker: PlayedWorker
) -> None:
    job = await dead_job(client, worker)
    path = f"/v1/dead-letters/{job['error']['dead_letter_id']}"
    response = await client.post(f"{path}/redrive", None)
    assert response.status_code == 200
    assert (response.json()["status"], response.json()["error"], response.json()["failures"]) == ("queued", None, 0)
    for how in ("redrive", "discard"):
        again = await client.post(f"{path}/{how}", None)
        assert (again.status_code, again.json()["code"]) == (409, "conflict")
        assert "redriven already" in again.json()["detail"]
    attempt = await worker.claim()
    await attempt.say("after all")
    await attempt.finish()
    assert (await client.get(f"/v1/jobs/{job['id']}"))["result"]["text"] == "after all"
    assert (await client.get(path))["state"] == "redriven"
    assert (await client.get("/v1/dead-letters"))["data"] == []
    assert len((await client.get("/v1/dead-letters?state=redriven"))["data"]) == 1


async def test_of_many_redrives_at_once_one_is_made(client: GatewayClient, worker: PlayedWorker) -> None:
    letter_id = await dead_letter(client, worker)
    responses = await asyncio.gather(*(client.post(f"/v1/dead-letters/{letter_id}/redrive", None) for _ in range(8)))
    assert sorted(response.status_code for response in responses) == [200] + [409] * 7


async def test_a_discarded_letter_stays_to_be_seen(client: GatewayClient, worker: PlayedWorker) -> None:
    job = await dead_job(client, worker)
    letter_id = job["error"]["dead_letter_id"]
    response = await client.post(f"/v1/dead-letters/{letter_id}/discard", None)
    assert (response.status_code, response.json()["state"]) == (200, "discarded")
    assert (await client.get(f"/v1/jobs/{job['id']}"))["error"]["dead_letter_id"] == letter_id


async def test_anothers_letters_look_like_letters_that_nobody_has(client: GatewayClient, worker: PlayedWorker) -> None:
    letter_id = await dead_letter(client, worker)
    for method, path in (("GET", ""), ("POST", "/redrive"), ("POST", "/discard")):
        answers = [
            await client.http.request(method, f"/v1/dead-letters/{one}{path}", headers=OTHER)
            for one in (letter_id, UNKNOWN, "no-id")
        ]
        assert {answer.status_code for answer in answers} == {404}
        assert len({answer.content for answer in answers}) == 1
    assert (await client.http.get("/v1/dead-letters", headers=OTHER)).json()["data"] == []


async def test_whoever_comes_back_with_the_old_end_gets_the_new_attempt(
    client: GatewayClient, worker: PlayedWorker
) -> None:
    job = await dead_job(client, worker, "a beginning")
    async with client.follow(job["id"]) as reader:
        frames = await reader.rest()
    failed = frames[-1][0]
    assert (await client.http.get(f"/v1/jobs/{job['id']}/events?after={failed}")).status_code == 204
    await client.post(f"/v1/dead-letters/{job['error']['dead_letter_id']}/redrive", None)
    async with client.follow(job["id"], failed) as reader:
        assert (await reader.until("queued"))["queue"] == "chat"
        attempt = await worker.claim()
        await attempt.say("after all")
        await attempt.finish()
        assert [event["kind"] for _, event in await reader.rest()] == ["started", "text", "final"]
    async with client.follow(job["id"]) as reader:
        kinds = [event["kind"] for _, event in await reader.rest()]
        assert kinds == ["queued", "started", "text", "failed", "queued", "started", "text", "final"]
        assert reader.fold.text == "after all"


@pytest.mark.parametrize("after", [None, EventId(2, 1)])
async def test_a_redrive_whose_event_is_not_in_the_log_is_told_from_sql(
    client: GatewayClient, worker: PlayedWorker, after: EventId | None
) -> None:
    job = await dead_job(client, worker, "a beginning")
    recorded = await worker._database.write(redrive, "default", job["error"]["dead_letter_id"])
    async with client.follow(job["id"], after) as reader:
        assert (await reader.until("queued")) is not None
        if after is None:
            await reader.until("failed")
            await reader.until("queued")
        attempt = await worker.claim()
        await attempt.finish("late")
        await reader.until("final")
        assert await reader.next() is None
    assert recorded.epoch == 3


async def test_a_move_that_never_reached_the_log_is_noticed_behind_a_silent_stream(
    client: GatewayClient, worker: PlayedWorker
) -> None:
    """Only SQL's epoch tells that there is more than the stream has."""
    job = await client.create_job()
    async with client.follow(job["id"]) as reader:
        await reader.until("queued")
        attempt = await worker.claim(tell=False)
        assert (await reader.until("started"))["attempt"] == 1
        assert attempt.epoch == 1


async def test_a_log_that_is_lost_after_the_redrive_still_ends_at_the_new_end(
    serve_gateway: ServeGateway, worker: PlayedWorker, log: EventLog
) -> None:
    serving = await serve_gateway()
    async with GatewayClient(serving.url) as client:
        job = await dead_job(client, worker)
        entries = await log.read(job["id"])
        await client.post(f"/v1/dead-letters/{job['error']['dead_letter_id']}/redrive", None)
        attempt = await worker.claim()
        await attempt.say("after all")
        await attempt.finish()
        # The log is rolled back to what it was when the job had died.
        key = log.key(job["id"])
        await log.redis.delete(key)
        for entry in entries:
            fields = {"e": entry.event, **({"t": "1"} if entry.terminal else {})}
            await log.redis.xadd(key, fields, id=str(entry.id))  # type: ignore[arg-type] # redis-py's invariance
        async with client.follow(job["id"]) as reader:
            kinds = [event["kind"] for _, event in await reader.rest()]
            assert kinds[-1] == "final"
            assert reader.fold.text == "after all"
