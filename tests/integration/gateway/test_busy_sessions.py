"""A message for a session that is still answering."""

from __future__ import annotations

from typing import Any

from schemas.ids import new_id
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.played import PlayedWorker


async def ask(client: GatewayClient, session_id: str, if_busy: str, **fields: Any) -> Any:
    body = {"message": "and then?", "session_id": session_id, "if_busy": if_busy, **fields}
    return await client.post("/v1/jobs", body)


async def status(client: GatewayClient, job_id: str) -> str:
    return str((await client.get(f"/v1/jobs/{job_id}"))["status"])


async def test_a_busy_session_refuses_a_message_that_is_not_to_wait(
    client: GatewayClient, worker: PlayedWorker
) -> None:
    first = await client.create_job()
    refused = await ask(client, first["session_id"], "reject")
    assert refused.status_code == 409
    assert (refused.json()["code"], refused.json()["field"]) == ("busy", "if_busy")
    await (await worker.claim()).finish("an answer")
    assert (await ask(client, first["session_id"], "reject")).status_code == 202
    # Nothing of the refused one is left.
    assert len((await client.get("/v1/jobs"))["data"]) == 2


async def test_an_interrupt_cancels_what_waits_and_stops_what_runs(client: GatewayClient, worker: PlayedWorker) -> None:
    running = await client.create_job()
    attempt = await worker.claim()
    await attempt.say("half an ans")
    waiting = (await ask(client, running["session_id"], "enqueue")).json()
    accepted = await ask(client, running["session_id"], "interrupt", job_id=new_id())
    assert accepted.status_code == 202
    assert await status(client, waiting["id"]) == "cancelled"
    stopping = await client.get(f"/v1/jobs/{running['id']}")
    assert (stopping["status"], stopping["cancel"]["reason"]) == ("running", "interrupted")
    async with client.follow(waiting["id"]) as events:
        assert (await events.until("cancelled"))["reason"] == "interrupted"
    await attempt.cancel("interrupted")
    assert (await worker.claim()).claim.job_id == accepted.json()["id"]


async def test_an_interrupt_sent_again_interrupts_nothing_more(client: GatewayClient, worker: PlayedWorker) -> None:
    first = await client.create_job()
    once = {"job_id": new_id()}
    await ask(client, first["session_id"], "interrupt", **once)
    later = (await ask(client, first["session_id"], "enqueue", message="later")).json()
    assert (await ask(client, first["session_id"], "interrupt", **once)).status_code == 200
    assert await status(client, later["id"]) == "queued"


async def test_the_order_of_acceptance_is_the_order_of_answers(client: GatewayClient, worker: PlayedWorker) -> None:
    first = await client.create_job()
    others = [(await ask(client, first["session_id"], "enqueue", message=f"{n}")).json()["id"] for n in range(4)]
    for job_id in (first["id"], *others):
        attempt = await worker.claim()
        assert attempt.claim.job_id == job_id
        await attempt.finish("an answer")
