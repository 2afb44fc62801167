"""Tenants see nothing of each other, and browsers' pages from elsewhere see nothing at all."""

from __future__ import annotations

from schemas.ids import new_id
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.played import PlayedWorker
from tests.integration.gateway.serving import Serving

OTHER = {"x-chatmill-tenant": "other"}
UNKNOWN = "00000000-0000-7000-8000-000000000000"


async def test_anothers_ids_look_like_ids_that_nobody_has(client: GatewayClient, worker: PlayedWorker) -> None:
    job = await client.create_job()
    await (await worker.claim()).finish("secret")
    for method, path in (
        ("GET", "/v1/jobs/{job}"),
        ("GET", "/v1/jobs/{job}?wait=1"),
        ("GET", "/v1/jobs/{job}/events"),
        ("POST", "/v1/jobs/{job}/cancel"),
        ("GET", "/v1/sessions/{session}"),
        ("PATCH", "/v1/sessions/{session}"),
        ("DELETE", "/v1/sessions/{session}"),
    ):
        answers = []
        for job_id, session_id in ((job["id"], job["session_id"]), (UNKNOWN, UNKNOWN)):
            url = path.format(job=job_id, session=session_id)
            body = {"system": "mine now"} if method == "PATCH" else None
            answers.append(await client.http.request(method, url, headers=OTHER, json=body))
        assert answers[0].status_code == answers[1].status_code == 404
        assert answers[0].content == answers[1].content
    assert (await client.http.get("/v1/jobs", headers=OTHER)).json()["data"] == []
    assert (await client.http.get("/v1/sessions", headers=OTHER)).json()["data"] == []


async def test_anothers_session_and_messages_cannot_be_talked_to(client: GatewayClient, worker: PlayedWorker) -> None:
    job = await client.create_job()
    await (await worker.claim()).finish("secret")
    body = {"session_id": job["session_id"], "message": "what did they say?"}
    response = await client.post("/v1/jobs", body, headers=OTHER)
    assert (response.status_code, response.json()["field"]) == (404, "session_id")
    mine = (await client.post("/v1/sessions", {}, headers=OTHER)).json()
    body = {"session_id": mine["id"], "reply_to": job["user_message_id"]}
    response = await client.post("/v1/jobs", body, headers=OTHER)
    assert (response.status_code, response.json()["field"]) == (404, "reply_to")


async def test_anothers_job_id_cannot_be_used_again(client: GatewayClient) -> None:
    body = {"message": "hi", "job_id": new_id()}
    await client.create_job(body)
    response = await client.post("/v1/jobs", body, headers=OTHER)
    assert (response.status_code, response.json()["field"]) == (422, "job_id")


async def test_a_tenant_may_be_named_in_the_body_too_if_it_is_the_same(client: GatewayClient) -> None:
    response = await client.post("/v1/jobs", {"message": "hi", "tenant": "other"}, headers=OTHER)
    assert response.status_code == 202
    assert len((await client.http.get("/v1/jobs", headers=OTHER)).json()["data"]) == 1


async def test_what_is_no_tenants_name_is_refused(client: GatewayClient) -> None:
    for name in ("", "a b", "a/b", "../x", "x" * 65, "ü"):
        response = await client.http.get("/v1/jobs", headers={b"x-chatmill-tenant": name.encode()})
        assert (response.status_code, response.json()["field"]) == (422, "x-chatmill-tenant"), name


async def test_requests_by_another_name_than_this_machines_are_refused(client: GatewayClient, gateway: Serving) -> None:
    for host in ("evil.com", f"evil.com:{gateway.port}", "192.168.0.1"):
        response = await client.post("/v1/jobs", {"message": "hi"}, headers={"host": host})
        assert (response.status_code, response.json()["field"]) == (403, "host")
    assert (await client.get("/v1/jobs"))["data"] == []


async def test_a_page_from_elsewhere_is_refused_and_our_own_is_served(client: GatewayClient, gateway: Serving) -> None:
    for origin in ("http://evil.com", "http://localhost:1", "null"):
        response = await client.post("/v1/jobs", {"message": "hi"}, headers={"origin": origin})
        assert (response.status_code, response.json()["field"]) == (403, "origin")
    own = {"origin": f"http://localhost:{gateway.port}", "sec-fetch-site": "same-origin"}
    assert (await client.post("/v1/jobs", {"message": "hi"}, headers=own)).status_code == 202
    assert len((await client.get("/v1/jobs"))["data"]) == 1
