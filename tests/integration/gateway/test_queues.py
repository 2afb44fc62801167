"""Queues and breakers over HTTP."""

from __future__ import annotations

from schemas.errors import JobError
from schemas.settings import Settings
from storage.breakers import BreakerRules, record_failure
from storage.clock import to_us
from storage.database import Database
from storage.event_log import EventLog
from storage.jobs.claim import claim
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.played import LEASE_US, PlayedWorker

RULES = BreakerRules(threshold=2, pause_us=to_us(30), longest_pause_us=to_us(60))
ERROR = JobError(code="provider_error", message="the provider failed", retryable=True)


async def test_a_paused_queue_is_shown_with_its_reason_and_starts_nothing(
    client: GatewayClient, database: Database, worker: PlayedWorker
) -> None:
    await client.create_job()
    await worker.claim()
    await client.create_job()
    response = await client.post("/v1/queues/chat/pause", {"reason": "the provider is away"})
    assert response.status_code == 200
    paused = response.json()
    assert (paused["name"], paused["paused"], paused["reason"]) == ("chat", True, "the provider is away")
    assert (paused["queued"], paused["running"]) == (1, 1)
    again = await client.post("/v1/queues/chat/pause", {"reason": "another"})
    assert again.json()["reason"] == "the provider is away"
    assert await database.write(claim, "chat", "w", LEASE_US) is None
    await client.create_job()
    assert (await client.get("/v1/queues"))["data"][0]["queued"] == 2


async def test_a_resumed_queue_is_rung_for(
    client: GatewayClient, worker: PlayedWorker, log: EventLog, settings: Settings
) -> None:
    await client.create_job()
    await client.post("/v1/queues/chat/pause", None)
    key = f"{settings.namespace}:chat"
    await log.redis.delete(key)
    for _ in range(2):
        response = await client.post("/v1/queues/chat/resume", None)
        assert (response.status_code, response.json()["paused"], response.json()["reason"]) == (200, False, None)
    assert await log.redis.llen(key) == 1
    await worker.claim()


async def test_a_queue_without_jobs_can_be_paused(client: GatewayClient) -> None:
    assert (await client.get("/v1/queues"))["data"] == []
    assert (await client.post("/v1/queues/empty/pause", None)).json()["paused"]
    assert [queue["name"] for queue in (await client.get("/v1/queues"))["data"]] == ["empty"]


async def test_wrong_names_and_reasons_are_named(client: GatewayClient) -> None:
    for name in ("a%20b", "chat.alone", "1", "x" * 65):
        for verb in ("pause", "resume"):
            response = await client.post(f"/v1/queues/{name}/{verb}", None)
            assert (response.status_code, response.json()["field"]) == (422, "name"), name
    for body, field in (({"reason": 5}, "reason"), ({"reason": "x" * 201}, "reason"), ({"resaon": "x"}, "resaon")):
        response = await client.post("/v1/queues/chat/pause", body)
        assert (response.status_code, response.json()["field"]) == (422, field)


async def test_a_breaker_is_listed_and_reset_by_hand(client: GatewayClient, database: Database) -> None:
    for _ in range(2):
        await database.write(record_failure, "api.example.com/m", "job", ERROR, RULES)
    (breaker,) = (await client.get("/v1/breakers"))["data"]
    assert (breaker["name"], breaker["open"], breaker["failures"]) == ("api.example.com/m", True, 2)
    assert breaker["probe_at"] > breaker["opened_at"]
    assert breaker["last_error"]["code"] == "provider_error"
    response = await client.post("/v1/breakers/reset", {"name": "api.example.com/m"})
    assert (response.status_code, response.json()) == (200, {"data": []})
    response = await client.post("/v1/breakers/reset", {"name": "api.example.com/m"})
    assert (response.status_code, response.json()["code"]) == (404, "not_found")
    for body in ({}, {"name": ""}, {"name": "x" * 257}):
        assert (await client.post("/v1/breakers/reset", body)).json()["field"] == "name"
