"""The quarantine over HTTP: bytes are shown as they are, and go back to their queue once."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from schemas.settings import Settings
from storage.database import Database
from storage.event_log import EventLog
from storage.quarantine import keep
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.conftest import ServeGateway
from tests.integration.gateway.test_tenants import OTHER, UNKNOWN


async def queued_messages(log: EventLog, settings: Settings) -> list[bytes]:
    """What waits on the queue."""
    key = f"{settings.namespace}:chat"
    ids = await log.redis.lrange(key, 0, -1)
    found = [await log.redis.hget(f"{key}.msgs", one) for one in ids]
    return [message for message in found if isinstance(message, bytes)]


async def kept(database: Database, payload: bytes, reason: str = "not a message") -> str:
    return await database.write(keep, "chat", reason, payload)


async def test_a_message_is_shown_with_its_bytes_and_its_text(client: GatewayClient, database: Database) -> None:
    text, garbage = await kept(database, b'["h\xc3\xb6"]'), await kept(database, b"\xff\x00\x01")
    page = await client.get("/v1/quarantine")
    assert [(entry["id"], entry["size"], entry["state"]) for entry in page["data"]] == [
        (garbage, 3, "lying"),
        (text, 7, "lying"),
    ]
    assert "payload" not in page["data"][0]
    shown = await client.get(f"/v1/quarantine/{garbage}")
    assert (base64.b64decode(shown["payload"]), shown["text"]) == (b"\xff\x00\x01", None)
    assert (await client.get(f"/v1/quarantine/{text}"))["text"] == '["hö"]'
    page = await client.get("/v1/quarantine?limit=1")
    assert [entry["id"] for entry in (await client.get(f"/v1/quarantine?before={page['next']}"))["data"]] == [text]
    assert (await client.get("/v1/quarantine?queue=bulk"))["data"] == []


@pytest.mark.parametrize(
    ("payload", "arguments"),
    [
        (b"\xff\x00 not json", None),
        (b"", None),
        (b"[" * 50_000, None),
        (b'{"actor_name": "gone", "args": []}', None),
        (b"7", None),
        (b'"text"', None),
        (b"{}", None),
        (b'{"message": "no envelope"}', [{"message": "no envelope"}]),
        (b"[1, 2]", [1, 2]),
        (b'[{"message": "\\ud800", "n": 123456789012345678901234567890, "x": NaN}]', "the bytes"),
    ],
)
async def test_a_message_goes_back_as_it_was(
    client: GatewayClient, database: Database, log: EventLog, settings: Settings, payload: bytes, arguments: Any
) -> None:
    entry_id = await kept(database, payload)
    response = await client.post(f"/v1/quarantine/{entry_id}/requeue", None)
    assert (response.status_code, response.json()["state"], response.json()["job_id"]) == (200, "requeued", None)
    (message,) = await queued_messages(log, settings)
    if arguments is None:
        assert message == payload
        return
    sent = json.loads(message)
    assert sent["actor_name"] == "chat"
    assert sent["options"] == {"redis_message_id": entry_id}
    if arguments == "the bytes":
        assert payload in message
    else:
        assert sent["args"] == arguments


async def test_a_corrected_message_is_checked_and_has_a_job_to_look_for(
    client: GatewayClient, database: Database, log: EventLog, settings: Settings
) -> None:
    entry_id = await kept(database, b"garbage")
    for payload, field in (
        ({"mesage": "typo"}, "payload.mesage"),
        ({}, "payload.message"),
        ({"message": "x", "tenant": "other"}, "payload.tenant"),
        ({"message": "x", "model": "unknown"}, "payload.model"),
        ("text", "payload"),
    ):
        response = await client.post(f"/v1/quarantine/{entry_id}/requeue", {"payload": payload})
        assert (response.status_code, response.json().get("field")) == (422, field), payload
    assert await queued_messages(log, settings) == []
    response = await client.post(f"/v1/quarantine/{entry_id}/requeue", {"payload": {"message": "what was meant"}})
    assert (response.status_code, response.json()["job_id"]) == (200, entry_id)
    (message,) = await queued_messages(log, settings)
    (job,) = json.loads(message)["args"]
    assert (job["message"], job["job_id"], job["queue"]) == ("what was meant", entry_id, "chat")


async def test_what_is_decided_stays_decided(client: GatewayClient, database: Database) -> None:
    for first in ("requeue", "drop"):
        entry_id = await kept(database, b"x")
        assert (await client.post(f"/v1/quarantine/{entry_id}/{first}", None)).status_code == 200
        for second in ("requeue", "drop"):
            response = await client.post(f"/v1/quarantine/{entry_id}/{second}", None)
            assert (response.status_code, response.json()["code"]) == (409, "conflict")
    assert (await client.get("/v1/quarantine"))["data"] == []
    assert len((await client.get("/v1/quarantine?state=dropped"))["data"]) == 1


async def test_many_at_once_put_one_message_on_the_queue(
    client: GatewayClient, database: Database, log: EventLog, settings: Settings
) -> None:
    entry_id = await kept(database, b'[{"message": "x"}]')
    responses = await asyncio.gather(*(client.post(f"/v1/quarantine/{entry_id}/requeue", None) for _ in range(8)))
    assert sorted(response.status_code for response in responses) == [200] + [409] * 7
    assert len(await queued_messages(log, settings)) == 1


async def test_without_redis_nothing_is_requeued_or_lost(serve_gateway: ServeGateway, database: Database) -> None:
    entry_id = await kept(database, b"x")
    serving = await serve_gateway(redis_url="redis://127.0.0.1:9/0")
    async with GatewayClient(serving.url) as client:
        response = await client.post(f"/v1/quarantine/{entry_id}/requeue", None)
        assert (response.status_code, response.json()["code"]) == (503, "queue_unavailable")
        assert (await client.get(f"/v1/quarantine/{entry_id}"))["state"] == "lying"


async def test_anothers_messages_look_like_messages_that_nobody_has(client: GatewayClient, database: Database) -> None:
    entry_id = await kept(database, b"x")
    for method, path in (("GET", ""), ("POST", "/requeue"), ("POST", "/drop")):
        answers = [
            await client.http.request(method, f"/v1/quarantine/{one}{path}", headers=OTHER)
            for one in (entry_id, UNKNOWN, "no-id")
        ]
        assert {answer.status_code for answer in answers} == {404}
        assert len({answer.content for answer in answers}) == 1
    assert (await client.http.get("/v1/quarantine", headers=OTHER)).json()["data"] == []
