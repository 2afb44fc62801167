"""Following a job over HTTP, when nothing goes wrong."""

from __future__ import annotations

import asyncio

from schemas.ids import new_id
from schemas.job_event import EventId
from storage.event_log import EventLog
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.conftest import ServeGateway
from tests.integration.gateway.played import PlayedWorker
from tests.integration.gateway.serving import Serving


async def test_a_streamed_job_shows_its_events_in_order_until_the_terminal_one(
    client: GatewayClient, worker: PlayedWorker
) -> None:
    async with client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader:
        queued = await reader.until("queued")
        assert reader.response.headers["location"] == f"/v1/jobs/{queued['job_id']}"
        attempt = await worker.claim()
        await attempt.say("Hel", "lo")
        await attempt.use({"id": "c1", "name": "calculator", "status": "started", "args": {}})
        await attempt.say("!")
        await attempt.finish()
        frames = await reader.rest()
    assert [str(event_id) for event_id, _ in frames] == ["1-1", "1-2", "1-3", "1-4", "1-5", "2-1"]
    assert [event["kind"] for _, event in frames] == ["started", "text", "text", "tool", "text", "final"]
    assert reader.fold.text == "Hello!" == attempt.text


async def test_the_headers_keep_proxies_from_holding_events_back(client: GatewayClient) -> None:
    async with client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader:
        headers = reader.response.headers
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"


async def test_resuming_behind_any_event_gives_exactly_what_follows_it(
    client: GatewayClient, worker: PlayedWorker
) -> None:
    job = await client.create_job()
    attempt = await worker.claim()
    await attempt.say("one ", "two ")
    await attempt.fail()
    attempt = await worker.claim()
    await attempt.say("three ")
    await attempt.say("four")
    await attempt.finish()
    async with client.follow(job["id"]) as reader:
        whole = await reader.rest()
    assert len(whole) == 9
    for place, (event_id, _) in enumerate(whole[:-1]):
        async with client.follow(job["id"], event_id) as reader:
            assert await reader.rest() == whole[place + 1 :]


async def test_after_is_the_cursor_of_clients_without_headers_and_the_header_goes_first(
    client: GatewayClient, worker: PlayedWorker
) -> None:
    job = await client.create_job()
    attempt = await worker.claim()
    await attempt.say("a", "b")
    await attempt.finish()
    path = f"/v1/jobs/{job['id']}/events?after=1-2"
    async with client.stream("GET", path) as reader:
        assert [str(event_id) for event_id, _ in await reader.rest()] == ["1-3", "2-1"]
    async with client.stream("GET", path, headers={"last-event-id": "1-3"}) as reader:
        assert [str(event_id) for event_id, _ in await reader.rest()] == ["2-1"]


async def test_a_cursor_at_or_past_the_terminal_event_gets_no_content(
    client: GatewayClient, worker: PlayedWorker
) -> None:
    job = await client.create_job()
    await (await worker.claim()).finish("done")
    for cursor in ("2-1", "2-2", "9-1"):
        response = await client.http.get(f"/v1/jobs/{job['id']}/events", headers={"last-event-id": cursor})
        assert (response.status_code, response.content) == (204, b"")


async def test_a_cursor_that_no_event_of_the_job_can_have_had_starts_from_the_beginning(
    client: GatewayClient, worker: PlayedWorker
) -> None:
    job = await client.create_job()
    async with client.follow(job["id"], "7-3") as reader:
        await reader.until("queued")


async def test_what_is_no_event_id_is_a_bad_cursor(client: GatewayClient) -> None:
    job = await client.create_job()
    for cursor in ("1", "x", "1-", "-1", "1-2-3", "1-" + "9" * 30, "１-１"):
        path = f"/v1/jobs/{job['id']}/events"
        for response in (
            await client.http.get(path, params={"after": cursor}),
            await client.http.get(path, headers={b"last-event-id": cursor.encode()}),
        ):
            assert response.status_code == 400
            assert response.json()["code"] == "bad_cursor"
            assert response.json()["field"] in ("after", "last-event-id")


async def test_the_same_request_again_shows_the_same_events(client: GatewayClient, worker: PlayedWorker) -> None:
    body = {"message": "hi", "job_id": new_id()}
    async with client.stream("POST", "/v1/jobs?stream=true", json=body) as reader:
        first = [await reader.next()]
        attempt = await worker.claim()
        await attempt.say("hello")
        async with client.stream("POST", "/v1/jobs?stream=true", json=body) as again:
            await again.until("text")
            await attempt.finish()
            await again.until("final")
        first += await reader.rest()
    async with client.stream("POST", "/v1/jobs?stream=1", json=body) as later:
        assert await later.rest() == first


async def test_many_clients_of_one_job_get_the_same(client: GatewayClient, worker: PlayedWorker) -> None:
    job = await client.create_job()
    began = asyncio.Semaphore(0)

    async def read_all() -> list[tuple[EventId, dict[str, object]]]:
        async with client.follow(job["id"]) as reader:
            first = await reader.next()
            began.release()
            assert first is not None
            return [first, *await reader.rest()]

    readers = [asyncio.create_task(read_all()) for _ in range(20)]
    for _ in readers:
        await began.acquire()
    attempt = await worker.claim()
    for word in ["many", "words", "for", "many", "readers"]:
        await attempt.say(word + " ")
    await attempt.finish()
    told = await asyncio.gather(*readers)
    assert len(told[0]) == 8
    assert all(frames == told[0] for frames in told)


async def test_a_silent_stream_gets_its_first_byte_at_once_and_comments_later(serve_gateway: ServeGateway) -> None:
    gateway = await serve_gateway(heartbeat_s=0.05)
    async with GatewayClient(gateway.url) as client:
        job = await client.create_job()
        async with client.http.stream("GET", f"/v1/jobs/{job['id']}/events") as response:
            pieces = response.aiter_bytes()
            assert (await anext(pieces)).startswith(b":")
            seen = b""
            while seen.count(b": still here\n\n") < 3:
                seen += await anext(pieces)
    assert b"event: queued" in seen


async def test_leaving_a_stream_lets_go_of_it_and_cancels_nothing(
    client: GatewayClient, gateway: Serving, worker: PlayedWorker
) -> None:
    async with client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader:
        job_id = (await reader.until("queued"))["job_id"]
        await gateway.followed_by(1)
    await gateway.followed_by(0)
    await (await worker.claim()).finish("still answered")
    assert (await client.get(f"/v1/jobs/{job_id}"))["result"]["text"] == "still answered"


async def test_no_subscription_is_left_behind(
    client: GatewayClient, gateway: Serving, worker: PlayedWorker, log: EventLog, namespace: str
) -> None:
    jobs = [await client.create_job() for _ in range(10)]
    for job in jobs:
        async with client.follow(job["id"]) as reader:
            await reader.until("queued")
        await (await worker.claim()).finish("done")
        async with client.follow(job["id"]) as reader:
            await reader.until("final")
    await gateway.followed_by(0)
    async with asyncio.timeout(10):
        while await log.redis.pubsub_channels(f"{namespace}:*"):  # noqa: ASYNC110 - the server has no event for this
            await asyncio.sleep(0.005)


async def test_head_shows_the_headers_of_a_stream_and_ends(client: GatewayClient) -> None:
    job = await client.create_job()
    response = await client.http.head(f"/v1/jobs/{job['id']}/events")
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"] == "text/event-stream"


async def test_streams_end_at_once_without_a_terminal_event_when_the_gateway_stops(
    client: GatewayClient, gateway: Serving
) -> None:
    async with client.stream("POST", "/v1/jobs?stream=true", json={"message": "hi"}) as reader:
        await reader.until("queued")
        gateway.app.stop()
        assert await reader.rest() == []
