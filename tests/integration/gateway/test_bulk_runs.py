"""Bulk runs over HTTP: the gateway itself works them off."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.dying import dead_letter
from tests.integration.gateway.played import PlayedWorker
from tests.integration.gateway.test_tenants import OTHER, UNKNOWN


async def ended(client: GatewayClient, run_id: str) -> dict[str, Any]:
    """The run once it has ended."""
    async with asyncio.timeout(20):
        while (run := await client.get(f"/v1/bulk-runs/{run_id}"))["state"] == "running":  # noqa: ASYNC110 - a run sends no events
            await asyncio.sleep(0.02)
    return run


async def begun(client: GatewayClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(path, body)
    assert response.status_code == 202, response.text
    run: dict[str, Any] = response.json()
    assert response.headers["location"] == f"/v1/bulk-runs/{run['id']}"
    return run


async def test_a_dry_run_counts_and_changes_nothing(client: GatewayClient, worker: PlayedWorker) -> None:
    ids = [await dead_letter(client, worker) for _ in range(2)]
    for path in ("redrive", "discard"):
        response = await client.post(f"/v1/dead-letters/{path}", {"queue": "chat", "dry_run": True})
        assert (response.status_code, response.json()) == (200, {"dry_run": True, "count": 2, "ids": sorted(ids)})
    assert (await client.get("/v1/bulk-runs"))["data"] == []
    assert len((await client.get("/v1/dead-letters"))["data"]) == 2


async def test_letters_are_redriven_by_filter(client: GatewayClient, worker: PlayedWorker) -> None:
    for _ in range(3):
        await dead_letter(client, worker)
    other = await dead_letter(client, worker, queue="bulk")
    started = await begun(client, "/v1/dead-letters/redrive", {"queue": "chat", "since": "1h", "rate": 500})
    assert (started["action"], started["state"], started["total"], started["rate"]) == ("redrive", "running", 3, 500)
    assert started["filter"]["queue"] == "chat"
    assert started["filter"]["since"].endswith("Z")
    run = await ended(client, started["id"])
    assert (run["state"], run["done"], run["skipped"]) == ("finished", 3, 0)
    assert [letter["id"] for letter in (await client.get("/v1/dead-letters"))["data"]] == [other]
    for _ in range(3):
        await (await worker.claim()).finish("after all")


async def test_all_has_to_be_meant(client: GatewayClient, worker: PlayedWorker) -> None:
    await dead_letter(client, worker)
    for path in ("/v1/dead-letters/redrive", "/v1/dead-letters/discard", "/v1/jobs/cancel"):
        for body in ({}, {"all": False}, {"all": True, "queue": "chat"}, {"dry_run": True}, {"rate": 1}):
            response = await client.post(path, body)
            assert (response.status_code, response.json()["field"]) == (422, "all"), (path, body)
    run = await begun(client, "/v1/dead-letters/discard", {"all": True})
    assert (await ended(client, run["id"]))["done"] == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"queue": "a b"}, "queue"),
        ({"queue": 5}, "queue"),
        ({"queue": "chat", "rate": 0}, "rate"),
        ({"queue": "chat", "rate": "fast"}, "rate"),
        ({"queue": "chat", "rate": 1e9}, "rate"),
        ({"since": "yesterday"}, "since"),
        ({"queue": "chat", "dry_run": "yes"}, "dry_run"),
        ({"queue": "chat", "tenant": "other"}, "tenant"),
        ({"quue": "chat"}, "quue"),
    ],
)
async def test_a_wrong_request_is_named_and_begins_nothing(
    client: GatewayClient, body: dict[str, Any], field: str
) -> None:
    for path in ("/v1/dead-letters/redrive", "/v1/dead-letters/discard", "/v1/jobs/cancel"):
        response = await client.post(path, body)
        assert (response.status_code, response.json()["field"]) == (422, field), path
    for body_of_none in (b"", b"[]", b"{", b"null"):
        assert (await client.http.post("/v1/jobs/cancel", content=body_of_none)).status_code == 400
    assert (await client.get("/v1/bulk-runs"))["data"] == []


async def test_jobs_are_cancelled_by_filter(client: GatewayClient, worker: PlayedWorker) -> None:
    running = await client.create_job({"message": "one"})
    attempt = await worker.claim()
    await attempt.say("so far")
    queued = await client.create_job({"message": "two"})
    other = await client.create_job({"message": "three", "queue": "bulk"})
    preview = await client.post("/v1/jobs/cancel", {"queue": "chat", "status": "queued", "dry_run": True})
    assert preview.json() == {"dry_run": True, "count": 1, "ids": [queued["id"]]}
    run = await begun(client, "/v1/jobs/cancel", {"queue": "chat", "reason": "enough"})
    assert (await ended(client, run["id"]))["done"] == 2
    cancelled = await client.get(f"/v1/jobs/{queued['id']}")
    assert (cancelled["status"], cancelled["cancel"]["reason"]) == ("cancelled", "enough")
    told = await client.get(f"/v1/jobs/{running['id']}")
    assert (told["status"], told["cancel"]["reason"]) == ("running", "enough")
    assert (await client.get(f"/v1/jobs/{other['id']}"))["status"] == "queued"
    async with client.follow(queued["id"]) as reader:
        assert (await reader.until("cancelled"))["reason"] == "enough"


async def test_a_run_is_aborted_and_stays_so(client: GatewayClient, worker: PlayedWorker) -> None:
    for _ in range(3):
        await dead_letter(client, worker)
    run = await begun(client, "/v1/dead-letters/redrive", {"all": True, "rate": 0.5})
    response = await client.post(f"/v1/bulk-runs/{run['id']}/abort", None)
    assert (response.status_code, response.json()["state"]) == (200, "aborted")
    assert response.json()["done"] <= 1
    again = await client.post(f"/v1/bulk-runs/{run['id']}/abort", None)
    assert (again.status_code, again.json()) == (200, response.json())
    assert (await client.get("/v1/bulk-runs?state=aborted"))["data"] == [response.json()]
    assert (await client.get("/v1/bulk-runs?state=running"))["data"] == []


async def test_a_run_over_nothing_is_finished(client: GatewayClient) -> None:
    run = await begun(client, "/v1/dead-letters/redrive", {"all": True})
    assert (run["state"], run["total"]) == ("finished", 0)
    aborted = await client.post(f"/v1/bulk-runs/{run['id']}/abort", None)
    assert (aborted.status_code, aborted.json()["state"]) == (200, "finished")


async def test_anothers_runs_and_things_are_not_seen(client: GatewayClient, worker: PlayedWorker) -> None:
    await dead_letter(client, worker)
    mine = await begun(client, "/v1/dead-letters/redrive", {"all": True, "rate": 0.001})
    theirs = await client.post("/v1/dead-letters/redrive", {"all": True}, headers=OTHER)
    assert theirs.json()["total"] == 0
    for method, path in (("GET", ""), ("POST", "/abort")):
        answers = [
            await client.http.request(method, f"/v1/bulk-runs/{one}{path}", headers=OTHER)
            for one in (mine["id"], UNKNOWN)
        ]
        assert {answer.status_code for answer in answers} == {404}
        assert answers[0].content == answers[1].content
    listed = (await client.http.get("/v1/bulk-runs", headers=OTHER)).json()["data"]
    assert [run["id"] for run in listed] == [theirs.json()["id"]]
