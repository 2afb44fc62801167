"""The same gateway on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import orjson
import pytest
import pytest_asyncio

from schemas.job_event import EventId
from storage.database import open_database
from storage.migrate import migrate
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.played import PlayedWorker
from tests.postgres_server import PostgresServer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def migrated_postgres(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """The name of a migrated database, to be copied."""
    with postgres_server.database() as name:
        database = open_database(postgres_server.url(name))
        await migrate(database)
        await database.close()
        yield name


@pytest.fixture
def database_url(postgres_server: PostgresServer, migrated_postgres: str) -> Iterator[str]:
    """The address of a fresh, migrated database."""
    with postgres_server.database(migrated_postgres) as name:
        yield postgres_server.url(name)


async def test_a_job_is_streamed_resumed_and_shown(client: GatewayClient, worker: PlayedWorker) -> None:
    async with client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi\u0000"}) as reader:
        job_id = (await reader.until("queued"))["job_id"]
        attempt = await worker.claim()
        await attempt.say("hello ", "you")
        await attempt.finish()
        frames = await reader.rest()
    assert reader.fold.text == "hello you"
    async with client.follow(job_id, "1-2") as resumed:
        assert await resumed.rest() == frames[2:]
    job = await client.get(f"/v1/jobs/{job_id}?wait=1")
    assert job["result"]["text"] == "hello you"
    assert (await client.get("/readyz"))["database"]["detail"] == "postgresql"


async def test_what_the_log_never_got_comes_from_sql(client: GatewayClient, worker: PlayedWorker) -> None:
    async with client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader:
        attempt = await worker.claim()
        recorded = await attempt.fail(retryable=False, tell=False)
        frames = await reader.rest()
    assert frames[-1] == (EventId(2, 1), orjson.loads(recorded.event))


async def test_sessions_are_made_changed_and_removed(client: GatewayClient) -> None:
    history = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    session = (await client.post("/v1/sessions", {"messages": history})).json()
    path = f"/v1/sessions/{session['id']}"
    first, _ = (await client.get(path))["active_branch"]
    changed = await client.http.patch(path, json={"active_leaf": first, "metadata": {"a": 1}})
    assert (changed.json()["active_leaf"], changed.json()["metadata"]) == (first, {"a": 1})
    assert (await client.http.delete(path)).status_code == 204
    assert (await client.http.get(path)).status_code == 404


async def test_a_queued_job_is_cancelled_and_listed(client: GatewayClient) -> None:
    job = await client.create_job()
    response = await client.post(f"/v1/jobs/{job['id']}/cancel", {"reason": "no"})
    assert (response.status_code, response.json()["status"]) == (200, "cancelled")
    (listed,) = (await client.get("/v1/jobs?status=cancelled"))["data"]
    assert listed["id"] == job["id"]
