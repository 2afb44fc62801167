"""`GET /v1/overview` and what `chatmill top` makes of it, with and without Redis."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import insert

from cli.ports import free_port
from schemas.chat_job import ChatJob
from schemas.errors import JobError
from schemas.heartbeat import WorkerHeartbeat
from schemas.overview import Overview
from schemas.settings import Settings
from storage.clock import to_us
from storage.database import Database
from storage.event_log import EventLog
from storage.heartbeats import Heartbeats
from storage.jobs.accept import accept
from storage.jobs.claim import claim
from storage.jobs.settle import fail
from storage.jobs.statements import read_clock
from storage.tables import breakers, paused_queues
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.conftest import ServeGateway
from tests.unit.cli.command import chatmill

USELESS = JobError(code="authentication", message="the key is refused", retryable=False)


def a_worker(name: str, **changes: Any) -> WorkerHeartbeat:
    times = {"started_at": "2026-01-01T00:00:00.000Z", "at": "2026-01-01T00:00:00.000Z"}
    about = {"worker": name, "host": "h", "pid": 1, "queue": "chat", "running": 3, "threads": 4, "version": "1"}
    well = {"polled_s_ago": 0.5, "loop_lag_s": 0.0, "closing": False}
    return WorkerHeartbeat.model_validate({**times, **about, **well, **changes})


async def dead_job(database: Database, tenant: str) -> str:
    def die(connection: Any) -> str:
        job_id = accept(connection, ChatJob(message="x", tenant=tenant), "echo").job_id
        claimed = claim(connection, "chat", "w", to_us(15))
        assert claimed is not None
        fail(connection, claimed.job_id, claimed.epoch, USELESS, delay_us=0)
        return job_id

    return await database.write(die)


async def test_the_overview_tells_queues_workers_breakers_and_what_lies_there(
    client: GatewayClient, database: Database, log: EventLog, settings: Settings
) -> None:
    heartbeats = Heartbeats(log.redis, settings.namespace)
    await heartbeats.write(a_worker("one"))
    await heartbeats.write(a_worker("two", polled_s_ago=40, loop_lag_s=12, queue="bulk"))

    def prepare(connection: Any) -> None:
        now = read_clock(connection)
        connection.execute(insert(paused_queues).values(queue="night", reason="maintenance", paused_at=now))
        opened = {"name": "demo", "failures": 5, "opened_at": now, "probe_at": now, "pause_us": 1, "updated_at": now}
        connection.execute(insert(breakers).values(**opened))

    await database.write(prepare)
    mine = await dead_job(database, "default")
    await dead_job(database, "other")
    await client.create_job({"message": "waits"})
    body = await client.get("/v1/overview")
    found = Overview.model_validate(body)
    assert [queue.name for queue in found.queues] == ["bulk", "chat", "night"]
    bulk, chat, night = found.queues
    assert (chat.queued, chat.due, chat.running, chat.workers) == (1, 1, 0, 1)
    assert chat.oldest_due_s is not None
    assert (bulk.queued, bulk.workers, bulk.paused) == (0, 1, False)
    assert (night.paused, night.pause_reason, night.workers) == (True, "maintenance", 0)
    assert found.workers is not None
    ill, well = found.workers
    assert (well.worker, well.running, well.faults) == ("one", 3, [])
    assert len(ill.faults) == 2
    assert [(breaker.name, breaker.held) for breaker in found.breakers] == [("demo", 0)]
    assert (found.dead_letters, found.quarantine) == (2, 0)
    assert found.throughput.last_minute.dead == 2
    assert 50 <= found.throughput.last_minute.seconds <= 60
    assert [(failure.job_id, failure.error_code) for failure in found.failures] == [(mine, "authentication")]
    assert found.notes == []


async def test_failures_are_shown_to_their_own_tenant_only(client: GatewayClient, database: Database) -> None:
    theirs = await dead_job(database, "other")
    assert (await client.get("/v1/overview"))["failures"] == []
    found = await client.get("/v1/overview", headers={"x-chatmill-tenant": "other"})
    assert [failure["job_id"] for failure in found["failures"]] == [theirs]


async def test_without_redis_the_overview_is_there_and_says_what_it_does_not_know(serve_gateway: ServeGateway) -> None:
    gateway = await serve_gateway(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    async with GatewayClient(gateway.url) as client:
        await client.create_job({"message": "waits"})
        found = await client.get("/v1/overview")
        shown = await chatmill("--url", gateway.url, "top", "--once")
    assert found["workers"] is None
    assert "Redis does not answer" in found["notes"][0]
    assert (found["queues"][0]["queued"], found["queues"][0]["workers"]) == (1, None)
    assert shown.code == 0
    assert "Redis does not answer" in shown.out


async def test_top_prints_one_frame_or_the_json_of_a_real_gateway(
    client: GatewayClient, database: Database, log: EventLog, settings: Settings
) -> None:
    await Heartbeats(log.redis, settings.namespace).write(a_worker("worker-one"))
    mine = await dead_job(database, "default")
    url = str(client.http.base_url)
    shown = await chatmill("--url", url, "top", "--once")
    as_json = await chatmill("--url", url, "top", "--json")
    assert (shown.code, as_json.code) == (0, 0)
    for words in ("worker-one", "3/4", "well", mine, "authentication", "1 dead letter,"):
        assert words in shown.out
    (line,) = [line for line in as_json.out.splitlines() if line.startswith("{")]  # beside the log of this process
    assert json.loads(line)["failures"][0]["job_id"] == mine
