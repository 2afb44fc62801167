"""The header Idempotency-Key: the same request under the same key is the same job, whatever the key looks like."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from schemas.ids import keyed_id, new_id
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.played import PlayedWorker
from tests.integration.gateway.serving import Serving

KEYS = ("order-4711", "a b", '"8e03978e-40d5-43dd-bc93-6894a57f9324"', "x" * 255, "0")


async def send(client: GatewayClient, key: str, **body: Any) -> Any:
    headers = {b"idempotency-key": key.encode()}
    return await client.post("/v1/jobs", {"message": "once", **body}, headers=headers)


@pytest.mark.parametrize("key", KEYS)
async def test_the_same_request_under_a_key_is_one_job(client: GatewayClient, key: str) -> None:
    first, again = await send(client, key), await send(client, key)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json() == again.json()
    assert first.json()["id"] == keyed_id("default", key)
    assert first.headers["location"] == again.headers["location"]
    assert len((await client.get("/v1/jobs"))["data"]) == 1


async def test_another_request_under_the_key_is_refused(client: GatewayClient) -> None:
    await send(client, "k")
    other = await send(client, "k", message="twice")
    assert other.status_code == 422
    assert (other.json()["code"], other.json()["field"]) == ("invalid", "job_id")


async def test_many_of_the_same_at_once_are_one_job(client: GatewayClient) -> None:
    answers = await asyncio.gather(*(send(client, "k") for _ in range(10)))
    assert sorted(one.status_code for one in answers) == [200] * 9 + [202]
    assert len({one.json()["id"] for one in answers}) == 1


async def test_keys_of_two_tenants_are_two_jobs(client: GatewayClient) -> None:
    ids = set()
    for tenant in ("a", "b"):
        headers = {"idempotency-key": "k", "x-chatmill-tenant": tenant}
        answer = await client.post("/v1/jobs", {"message": "once"}, headers=headers)
        assert answer.status_code == 202
        ids.add(answer.json()["id"])
    assert len(ids) == 2


async def test_a_job_id_beside_the_key_must_be_the_same(client: GatewayClient) -> None:
    for job_id in (new_id(), "nonsense", 5):
        refused = await send(client, "k", job_id=job_id)
        assert (refused.status_code, refused.json()["field"]) == (422, "idempotency-key")
    assert (await send(client, "k", job_id=keyed_id("default", "k"))).status_code == 202
    assert (await send(client, "k")).status_code == 200


async def test_the_events_of_the_same_job_come_again(client: GatewayClient, worker: PlayedWorker) -> None:
    headers, body = {"idempotency-key": "k"}, {"message": "once"}
    async with client.stream("POST", "/v1/jobs?stream=true", json=body, headers=headers) as reader:
        await reader.until("queued")
        await (await worker.claim()).finish("done")
        await reader.until("final")
    async with client.stream("POST", "/v1/jobs?stream=true", json=body, headers=headers) as reader:
        assert (await reader.until("final"))["job_id"] == keyed_id("default", "k")
    other = await client.post("/v1/jobs?stream=true", {"message": "twice"}, headers=headers)
    assert other.status_code == 422


async def raw_post(gateway: Serving, *lines: bytes) -> bytes:
    """Headers that no client library would send."""
    body = b'{"message":"once"}'
    head = [b"POST /v1/jobs HTTP/1.1", b"host: 127.0.0.1", b"connection: close", b"content-length: %d" % len(body)]
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, family=socket.AF_INET)
    writer.write(b"\r\n".join([*head, *lines, b"", body]))
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize(
    "lines",
    [
        [b"idempotency-key: "],
        [b"idempotency-key: " + b"x" * 256],
        [b"idempotency-key: a\tb"],
        [b"idempotency-key: \xff\xfe"],
    ],
    ids=["empty", "too long", "not printable", "not ASCII"],
)
async def test_an_unusable_key_is_refused(gateway: Serving, client: GatewayClient, lines: list[bytes]) -> None:
    answer = await raw_post(gateway, *lines)
    assert b" 422 " in answer.partition(b"\r\n")[0]
    assert b'"field":"idempotency-key"' in answer
    assert (await client.get("/v1/jobs"))["data"] == []


async def test_the_key_is_described(client: GatewayClient) -> None:
    described = (await client.get("/openapi.json"))["paths"]["/v1/jobs"]["post"]["parameters"]
    (key,) = [one for one in described if one["name"].lower() == "idempotency-key"]
    assert (key["in"], key["schema"]["maxLength"]) == ("header", 255)


def test_the_id_of_a_key_never_changes() -> None:
    """Clients send a request again after an upgrade, too."""
    assert keyed_id("default", "order-4711") == "db1b76a1-e1e7-5cf4-b8fa-858e66058173"
