"""Jobs over HTTP: accepted, looked at, waited for, listed, cancelled."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from schemas.ids import new_id
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.played import PlayedWorker
from tests.integration.gateway.serving import Serving


async def test_a_job_is_accepted_with_its_place(client: GatewayClient) -> None:
    response = await client.post("/v1/jobs", {"message": "hello", "metadata": {"page": 3}, "model": "demo"})
    assert response.status_code == 202
    job = response.json()
    assert response.headers["location"] == f"/v1/jobs/{job['id']}"
    assert job["status"] == "queued"
    assert (job["queue"], job["attempt"], job["failures"]) == ("chat", 0, 0)
    assert (job["model"], job["agent_framework"], job["metadata"]) == ("demo", "langgraph", {"page": 3})
    assert job["events"] == f"/v1/jobs/{job['id']}/events"
    assert (job["started_at"], job["ended_at"]) == (None, None)
    assert job["result"] is job["error"] is job["cancel"] is None
    assert await client.get(response.headers["location"]) == job


async def test_the_body_is_json_whatever_its_content_type(client: GatewayClient) -> None:
    body = json.dumps({"message": "grüße 😀"}).encode()
    for content_type in (
        "application/x-www-form-urlencoded",
        "text/plain",
        "application/json; charset=utf-8",
        "",
        None,
    ):
        headers = {} if content_type is None else {"content-type": content_type}
        response = await client.http.post("/v1/jobs", content=body, headers=headers)
        assert response.status_code == 202, content_type


async def test_the_same_id_with_the_same_body_is_the_same_job(client: GatewayClient) -> None:
    body = {"job_id": new_id(), "message": "once"}
    first = await client.post("/v1/jobs", body)
    again = await client.post("/v1/jobs", body)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json() == again.json()
    assert first.headers["location"] == again.headers["location"]
    other = await client.post("/v1/jobs", {**body, "message": "twice"})
    assert other.status_code == 422
    assert other.json()["field"] == "job_id"
    assert len((await client.get("/v1/jobs"))["data"]) == 1


async def test_a_finished_job_shows_its_answer(client: GatewayClient, worker: PlayedWorker) -> None:
    job = await client.create_job()
    attempt = await worker.claim()
    assert (await client.get(f"/v1/jobs/{job['id']}"))["status"] == "running"
    await attempt.finish("hello yourself")
    shown = await client.get(f"/v1/jobs/{job['id']}")
    assert (shown["status"], shown["attempt"], shown["outcome"]) == ("finished", 1, "ok")
    assert shown["created_at"] <= shown["started_at"] <= shown["ended_at"] <= shown["deadline_at"]
    assert shown["result"]["text"] == "hello yourself"
    assert shown["result"]["response"] == [
        {"role": "assistant", "content": "hello yourself", "tool_calls": None, "tool_call_id": None}
    ]
    assert len(shown["result"]["message_ids"]) == 1


async def test_a_dead_job_shows_its_error_and_dead_letter(client: GatewayClient, worker: PlayedWorker) -> None:
    job = await client.create_job()
    await (await worker.claim()).fail()
    retrying = await client.get(f"/v1/jobs/{job['id']}")
    assert (retrying["status"], retrying["failures"], retrying["error"]) == ("queued", 1, None)
    await (await worker.claim()).fail()
    dead = await client.get(f"/v1/jobs/{job['id']}")
    assert (dead["status"], dead["failures"], dead["error_code"]) == ("dead", 2, "provider_error")
    dead_letter_id = dead["error"].pop("dead_letter_id")
    assert len(dead_letter_id) == 36
    assert dead["error"] == {"code": "provider_error", "message": "the provider failed", "retryable": True}


async def test_waiting_ends_with_the_job(client: GatewayClient, worker: PlayedWorker, gateway: Serving) -> None:
    job = await client.create_job()
    waiting = asyncio.create_task(client.get(f"/v1/jobs/{job['id']}?wait=60"))
    await gateway.followed_by(1)
    attempt = await worker.claim()
    await attempt.say("some", " words")
    await attempt.finish()
    assert (await waiting)["result"]["text"] == "some words"
    await gateway.followed_by(0)
    assert (await client.get(f"/v1/jobs/{job['id']}?wait=60"))["status"] == "finished"


async def test_waiting_ends_with_the_time_and_when_the_gateway_stops(client: GatewayClient, gateway: Serving) -> None:
    job = await client.create_job()
    assert (await client.get(f"/v1/jobs/{job['id']}?wait=0.05"))["status"] == "queued"
    waiting = asyncio.create_task(client.get(f"/v1/jobs/{job['id']}?wait=60"))
    await gateway.followed_by(1)
    gateway.app.stop()
    assert (await waiting)["status"] == "queued"


async def test_the_list_has_filters_and_pages(client: GatewayClient, worker: PlayedWorker) -> None:
    jobs = [await client.create_job({"message": str(number)}) for number in range(5)]
    jobs.append(await client.create_job({"message": "other", "queue": "slow"}))
    await (await worker.claim()).finish("done")
    ids = [job["id"] for job in jobs]

    async def listed(**parameters: Any) -> set[str]:
        return {job["id"] for job in (await client.get("/v1/jobs", params=parameters))["data"]}

    assert await listed() == set(ids)
    assert await listed(status="finished") == {ids[0]}
    assert await listed(queue="slow") == {ids[5]}
    assert await listed(session_id=jobs[2]["session_id"]) == {ids[2]}
    first = await client.get("/v1/jobs", params={"limit": 4})
    second = await client.get("/v1/jobs", params={"limit": 4, "before": first["next"]})
    assert [job["id"] for job in first["data"] + second["data"]] == sorted(ids, reverse=True)
    assert second["next"] is None


async def test_a_queued_job_is_cancelled_at_once(client: GatewayClient) -> None:
    job = await client.create_job()
    response = await client.post(f"/v1/jobs/{job['id']}/cancel", {"reason": "changed my mind"})
    assert response.status_code == 200
    assert response.json()["status"] == "cancelled"
    assert response.json()["cancel"] == {
        "reason": "changed my mind",
        "text": "",
        "response": [],
        "message_ids": [],
    }
    async with client.follow(job["id"]) as reader:
        assert (await reader.until("cancelled"))["reason"] == "changed my mind"


async def test_a_running_job_is_told_to_stop_and_says_when_it_has(
    client: GatewayClient, worker: PlayedWorker, gateway: Serving
) -> None:
    job = await client.create_job()
    attempt = await worker.claim()
    await attempt.say("half an ans")
    assert gateway.app.services is not None
    log = gateway.app.services.log
    async with log.redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe(f"{gateway.app.services.settings.namespace}:control")
        response = await client.http.post(f"/v1/jobs/{job['id']}/cancel")
        assert response.status_code == 202
        assert (response.json()["status"], response.json()["cancel"]["reason"]) == ("running", "requested")
        message = None
        while message is None:
            message = await pubsub.get_message(timeout=5)
        assert json.loads(message["data"])["cancel"] == job["id"]
    await attempt.cancel("requested")
    response = await client.post(f"/v1/jobs/{job['id']}/cancel", {})
    assert response.status_code == 200
    assert response.json()["cancel"]["text"] == "half an ans"


async def test_cancelling_what_has_ended_changes_nothing(client: GatewayClient, worker: PlayedWorker) -> None:
    job = await client.create_job()
    await (await worker.claim()).finish("done")
    response = await client.post(f"/v1/jobs/{job['id']}/cancel", {"reason": "too late"})
    assert (response.status_code, response.json()["status"]) == (200, "finished")
    assert response.json()["cancel"] is None


async def test_a_job_in_a_session_continues_it_and_reply_to_answers_again(
    client: GatewayClient, worker: PlayedWorker
) -> None:
    first = await client.create_job({"message": "one"})
    await (await worker.claim()).finish("first answer")
    second = await client.create_job({"message": "two", "session_id": first["session_id"]})
    attempt = await worker.claim()
    assert attempt.claim.history_leaf is not None
    await attempt.finish("second answer")
    again = await client.create_job({"session_id": first["session_id"], "reply_to": second["user_message_id"]})
    assert again["user_message_id"] == second["user_message_id"]
    await (await worker.claim()).finish("another answer")
    session = await client.get(f"/v1/sessions/{first['session_id']}")
    by_id = {message["id"]: message for message in session["messages"]}
    assert [by_id[name]["content"] for name in session["active_branch"]] == [
        "one",
        "first answer",
        "two",
        "another answer",
    ]
    assert len(session["messages"]) == 5
