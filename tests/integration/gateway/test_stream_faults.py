"""Following a job over HTTP while Redis loses connections, events, logs, or itself."""

from __future__ import annotations

import asyncio
import socket
import time

import orjson
import pytest
from redis.asyncio import Redis

from cli.valkey import Valkey
from schemas.job_event import EventId, encode_event
from storage.database import Database
from storage.event_log import EventLog
from storage.jobs.settle import cancel
from storage.sessions import delete_session
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.conftest import ServeGateway
from tests.integration.gateway.played import PlayedWorker, append_transition
from tests.integration.gateway.relay import Relay
from tests.integration.gateway.serving import Serving

#: So seldom that no test sees it: what is found, is found without the idle check.
NEVER_S = 60.0


@pytest.fixture
def redis_url(own_valkey: Valkey) -> str:
    """These tests flush, cut and stop their server."""
    return own_valkey.url


@pytest.fixture
def redis(log: EventLog) -> Redis:
    return log.redis


async def cut_subscriptions(redis: Redis) -> None:
    """Cut every pub/sub connection, as a server does with a slow one."""
    assert await redis.client_kill_filter(_type="pubsub") >= 1


async def test_events_published_while_the_subscription_is_cut_are_read_from_the_log(
    serve_gateway: ServeGateway, worker: PlayedWorker, redis: Redis
) -> None:
    gateway = await serve_gateway(idle_check_s=NEVER_S)
    async with (
        GatewayClient(gateway.url) as client,
        client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader,
    ):
        await reader.until("queued")
        attempt = await worker.claim()
        await attempt.say("one ")
        await reader.until("text")
        for word in ("two ", "three ", "four "):
            await cut_subscriptions(redis)
            await attempt.say(word)
            assert (await reader.until("text"))["text"] == word
        await cut_subscriptions(redis)
        await attempt.finish()
        await reader.until("final")
        assert reader.fold.text == attempt.text


async def test_a_hole_is_filled_as_soon_as_the_next_event_shows_it(
    serve_gateway: ServeGateway, worker: PlayedWorker, log: EventLog, redis: Redis
) -> None:
    gateway = await serve_gateway(idle_check_s=NEVER_S)
    async with (
        GatewayClient(gateway.url) as client,
        client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader,
    ):
        attempt = await worker.claim()
        job_id = attempt.claim.job_id
        await reader.until("started")
        # Stored but never published, as when the server cuts a subscriber between the two.
        unheard, heard = (encode_event("text", job_id, 0, text=text) for text in ("unheard ", "heard"))
        await redis.xadd(log.key(job_id), {"e": unheard}, id="1-2")
        await redis.xadd(log.key(job_id), {"e": heard}, id="1-3")
        await redis.publish(log.key(job_id), b"1-3 1-2 " + heard)
        await reader.until("text")
        await reader.until("text")
        assert reader.fold.text == "unheard heard"


async def test_a_last_event_nobody_heard_of_is_found_by_the_idle_check(
    client: GatewayClient, worker: PlayedWorker, log: EventLog, redis: Redis
) -> None:
    async with client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader:
        attempt = await worker.claim()
        job_id = attempt.claim.job_id
        await reader.until("started")
        await redis.xadd(log.key(job_id), {"e": encode_event("text", job_id, 0, text="unheard")}, id="1-2")
        assert (await reader.until("text"))["text"] == "unheard"


async def test_what_is_no_event_on_the_channel_is_ignored(
    client: GatewayClient, worker: PlayedWorker, log: EventLog, redis: Redis
) -> None:
    async with client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader:
        attempt = await worker.claim()
        for rubbish in (b"", b"rubbish", b"1-2 x {}", b"\xff\xff \xff"):
            await redis.publish(log.key(attempt.claim.job_id), rubbish)
        await attempt.say("hello")
        await attempt.finish()
        await reader.until("final")
        assert reader.fold.text == "hello"


async def test_an_expired_log_gives_the_terminal_event_under_its_id(
    client: GatewayClient, worker: PlayedWorker, log: EventLog, redis: Redis
) -> None:
    job = await client.create_job()
    attempt = await worker.claim()
    await attempt.say("hello")
    recorded = await attempt.finish()
    await redis.delete(log.key(job["id"]))
    for cursor in (None, "0-1", "1-2", "1-9"):
        async with client.follow(job["id"], cursor) as reader:
            frames = await reader.rest()
        assert frames == [(EventId(recorded.epoch, 1), orjson.loads(recorded.event))]
        assert b"data: " + recorded.event + b"\n\n" in reader.raw
    response = await client.http.get(f"/v1/jobs/{job['id']}/events", headers={"last-event-id": "2-1"})
    assert response.status_code == 204


async def test_a_waiting_job_whose_log_has_expired_shows_its_last_transition(
    client: GatewayClient, worker: PlayedWorker, log: EventLog, redis: Redis
) -> None:
    job = await client.create_job()
    await redis.delete(log.key(job["id"]))
    async with client.follow(job["id"]) as reader:
        await reader.until("queued")
        attempt = await worker.claim()
        await attempt.say("hello")
        await attempt.finish()
        assert [event["kind"] for _, event in await reader.rest()] == ["started", "text", "final"]


async def test_a_cursor_of_an_attempt_that_is_over_gets_what_sql_knows_if_the_log_is_lost(
    client: GatewayClient, worker: PlayedWorker, log: EventLog, redis: Redis
) -> None:
    job = await client.create_job()
    attempt = await worker.claim()
    await attempt.say("void")
    await attempt.fail(delay_us=60_000_000)
    await redis.delete(log.key(job["id"]))
    async with client.follow(job["id"], "1-2") as reader:
        await reader.until("retrying")
        assert reader.fold.last_id == EventId(2, 1)


async def test_a_log_that_is_flushed_mid_run_is_rebuilt_and_no_character_is_lost(
    serve_gateway: ServeGateway, worker: PlayedWorker, redis: Redis
) -> None:
    gateway = await serve_gateway(idle_check_s=NEVER_S)
    async with (
        GatewayClient(gateway.url) as client,
        client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader,
    ):
        attempt = await worker.claim()
        job_id = attempt.claim.job_id
        await attempt.say("be", "fore ")
        await reader.until("text")
        left_at = reader.fold.last_id
        await redis.flushall()
        await attempt.say("after")
        await reader.until("snapshot")
        assert reader.fold.text == attempt.text == "before after"
        await attempt.say("wards")
        async with client.follow(job_id, left_at) as resumed:
            await resumed.until("text")
            assert resumed.fold.text == attempt.text
            await attempt.finish()
            await resumed.until("final")
        await reader.until("final")
    assert reader.fold.text == resumed.fold.text == "before afterwards"


async def test_a_terminal_event_that_never_reached_the_log_comes_from_sql(
    client: GatewayClient, worker: PlayedWorker
) -> None:
    async with client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader:
        attempt = await worker.claim()
        await attempt.say("hello")
        recorded = await attempt.finish(tell=False)
        frames = await reader.rest()
    assert frames[-1] == (EventId(2, 1), orjson.loads(recorded.event))
    assert [event["kind"] for _, event in frames] == ["queued", "started", "text", "final"]


async def test_with_redis_gone_an_open_stream_still_ends_with_the_terminal_event(
    client: GatewayClient, worker: PlayedWorker, own_valkey: Valkey
) -> None:
    async with client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader:
        attempt = await worker.claim()
        await attempt.say("hello")
        await reader.until("text")
        await own_valkey.kill()
        recorded = await attempt.finish(tell=False)
        assert await reader.rest() == [(EventId(2, 1), orjson.loads(recorded.event))]
    assert reader.fold.text == "hello"


async def test_with_redis_gone_jobs_are_accepted_followed_waited_for_and_cancelled(
    client: GatewayClient, worker: PlayedWorker, own_valkey: Valkey, log: EventLog
) -> None:
    await own_valkey.kill()
    job = await client.create_job()
    async with client.follow(job["id"]) as reader:
        await reader.until("queued")
        waiting = asyncio.create_task(client.get(f"/v1/jobs/{job['id']}?wait=20"))
        attempt = await worker.claim(tell=False)
        await attempt.finish("answered", tell=False)
        await reader.until("final")
        assert (await waiting)["result"]["text"] == "answered"
    async with client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader:
        job_id = (await reader.until("queued"))["job_id"]
        response = await client.post(f"/v1/jobs/{job_id}/cancel", {})
        assert (response.status_code, response.json()["status"]) == (200, "cancelled")
        await reader.until("cancelled")
    ready = await client.http.get("/readyz")
    assert ready.status_code == 503
    assert ready.json()["redis"]["ready"] is False
    assert ready.json()["database"]["ready"] is True


async def test_a_stream_goes_on_when_redis_is_back(
    serve_gateway: ServeGateway, worker: PlayedWorker, own_valkey: Valkey
) -> None:
    gateway = await serve_gateway(idle_check_s=NEVER_S)
    async with (
        GatewayClient(gateway.url) as client,
        client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader,
    ):
        attempt = await worker.claim()
        await attempt.say("before ")
        await reader.until("text")
        await own_valkey.stop()
        await own_valkey.start()
        await attempt.say("after")
        await reader.until("text")
        await attempt.finish()
        await reader.until("final")
        assert reader.fold.text == "before after"


async def test_a_connection_that_has_gone_dead_without_a_word_is_given_up(
    serve_gateway: ServeGateway, worker: PlayedWorker, own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.subscriptions.SILENCE_S", 0.2)
    async with Relay(own_valkey.port) as relay:
        url = own_valkey.url.replace(f":{own_valkey.port}/", f":{relay.port}/")
        gateway = await serve_gateway(redis_url=url, idle_check_s=NEVER_S)
        async with (
            GatewayClient(gateway.url) as client,
            client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader,
        ):
            attempt = await worker.claim()
            await attempt.say("before ")
            await reader.until("text")
            relay.swallow()
            await attempt.say("meanwhile")
            await reader.until("text")
            assert reader.fold.text == attempt.text


async def test_the_stream_of_a_job_that_is_deleted_ends(
    client: GatewayClient, worker: PlayedWorker, database: Database, own_valkey: Valkey
) -> None:
    async with client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader:
        job_id = (await reader.until("queued"))["job_id"]
        await own_valkey.kill()
        await database.write(cancel, job_id, 0, "gone")
        session_id = (await client.get(f"/v1/jobs/{job_id}"))["session_id"]
        await database.write(delete_session, "default", session_id)
        await reader.rest()


async def test_a_client_that_does_not_read_slows_nobody_and_still_gets_everything(
    client: GatewayClient, gateway: Serving, worker: PlayedWorker
) -> None:
    job = await client.create_job()
    attempt = await worker.claim()
    loop = asyncio.get_running_loop()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        await loop.sock_connect(slow, ("127.0.0.1", gateway.port))
        request = f"GET /v1/jobs/{job['id']}/events HTTP/1.1\r\nhost: localhost:{gateway.port}\r\n\r\n"
        await loop.sock_sendall(slow, request.encode())
        async with client.follow(job["id"]) as reader:
            began = time.monotonic()
            for number in range(200):
                await attempt.say(f"{number} " + "x" * 30_000)
            while reader.fold.last_id < EventId(1, 201):
                assert await reader.next() is not None
            took = time.monotonic() - began
            await attempt.finish("x" * 10)
            await reader.until("final")
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        received = bytearray()
        while b"event: final" not in received:
            received += await asyncio.wait_for(loop.sock_recv(slow, 1 << 16), 10)
    assert took < 10
    ids = [line for line in received.split(b"\n") if line.startswith(b"id: ")]
    assert ids == [b"id: 0-1", *(b"id: 1-%d" % seq for seq in range(1, 202)), b"id: 2-1"]


async def test_a_transition_told_late_is_not_shown_twice(
    client: GatewayClient, worker: PlayedWorker, log: EventLog
) -> None:
    async with client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader:
        attempt = await worker.claim()
        await attempt.say("hello")
        recorded = await attempt.finish(tell=False)
        while (frame := await reader.next()) is not None:
            if frame[1]["kind"] == "final":
                await append_transition(log, recorded)
        assert reader.fold.text == "hello"
