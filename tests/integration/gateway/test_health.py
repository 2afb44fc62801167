"""What the gateway says of itself, also when what it needs is away."""

from __future__ import annotations

from pathlib import Path

from cli.ports import free_port
from schemas.version import version
from storage.migrate import newest_revision
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.conftest import ServeGateway


async def test_the_root_says_what_this_is_and_its_links_lead_somewhere(client: GatewayClient) -> None:
    welcome = await client.get("/")
    assert (welcome["name"], welcome["version"]) == ("chatmill", version())
    for link in welcome["links"].values():
        await client.get(link)


async def test_models_frameworks_and_tools_are_listed(client: GatewayClient) -> None:
    assert (await client.get("/v1/models"))["data"] == [{"id": "demo", "default": True}]
    frameworks = (await client.get("/v1/frameworks"))["data"]
    assert [framework["id"] for framework in frameworks] == ["langgraph", "echo", "none"]
    assert [framework["default"] for framework in frameworks] == [True, False, False]
    assert {"id": "calculator", "builtin": True} in (await client.get("/v1/tools"))["data"]


async def test_it_is_ready_when_everything_is_there(client: GatewayClient) -> None:
    assert await client.get("/healthz") == {"status": "ok"}
    readiness = await client.get("/readyz")
    assert readiness["ready"] is True
    assert readiness["migrations"] == {"ready": True, "detail": f"at {newest_revision()}"}


async def test_a_database_that_was_not_migrated_is_not_ready(serve_gateway: ServeGateway, tmp_path: Path) -> None:
    gateway = await serve_gateway(database_url=f"sqlite:///{tmp_path / 'empty.db'}")
    async with GatewayClient(gateway.url) as client:
        response = await client.http.get("/readyz")
    assert response.status_code == 503
    assert response.json()["database"]["ready"] is True
    assert response.json()["migrations"]["ready"] is False
    assert "chatmill migrate" in response.json()["migrations"]["detail"]


async def test_without_redis_it_is_alive_but_not_ready(serve_gateway: ServeGateway) -> None:
    gateway = await serve_gateway(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    async with GatewayClient(gateway.url) as client:
        await client.get("/healthz")
        response = await client.http.get("/readyz")
    assert response.status_code == 503
    assert response.json()["redis"]["ready"] is False


async def test_without_the_database_requests_are_to_be_sent_again(serve_gateway: ServeGateway) -> None:
    gateway = await serve_gateway(database_url=f"postgresql://nobody@127.0.0.1:{free_port()}/nothing")
    async with GatewayClient(gateway.url) as client:
        await client.get("/healthz")
        assert (await client.http.get("/readyz")).json()["database"]["ready"] is False
        for response in (
            await client.post("/v1/jobs", {"message": "hi"}),
            await client.post("/v1/jobs?stream=true", {"message": "hi"}),
            await client.http.get("/v1/jobs"),
            await client.http.get("/v1/sessions"),
        ):
            assert response.status_code == 503
            assert response.headers["retry-after"].isdigit()
            assert response.json()["code"] == "storage_unavailable"
        await gateway.followed_by(0)


async def test_the_metrics_say_what_is_away_and_what_is_counted(
    client: GatewayClient, serve_gateway: ServeGateway
) -> None:
    await client.http.post("/v1/jobs", json={"message": "hello"})
    here = (await client.http.get("/metrics")).text
    assert "chatmill_database_up 1.0" in here
    assert "chatmill_redis_up 1.0" in here
    assert 'chatmill_queue_depth{queue="chat"} 1.0' in here
    assert 'chatmill_jobs_accepted_total{queue="chat"} 1.0' in here
    gateway = await serve_gateway(
        database_url=f"postgresql://nobody@127.0.0.1:{free_port()}/nothing",
        redis_url=f"redis://127.0.0.1:{free_port()}/0",
    )
    async with GatewayClient(gateway.url) as cut_off:
        response = await cut_off.http.get("/metrics")
    assert response.status_code == 200
    assert "chatmill_database_up 0.0" in response.text
    assert "chatmill_redis_up 0.0" in response.text
    assert "chatmill_queue_depth" not in response.text
