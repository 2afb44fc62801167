"""What is wrong is refused with the field and the reason, before anything is accepted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from schemas.ids import new_id
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.conftest import ServeGateway

UNKNOWN = "00000000-0000-7000-8000-000000000000"

#: (body, status, code, field)
BAD_JOBS: list[tuple[Any, int, str, str | None]] = [
    (b"", 400, "malformed", None),
    (b"{", 400, "malformed", None),
    (b"{'message': 'single quotes'}", 400, "malformed", None),
    (b"message=hello", 400, "malformed", None),
    (b'{"message": NaN}', 400, "malformed", None),
    (b'{"message": "\xff"}', 400, "malformed", None),
    (b"[" * 100_000, 400, "malformed", None),
    ([], 400, "malformed", None),
    ("hello", 400, "malformed", None),
    (None, 400, "malformed", None),
    ({}, 422, "invalid", "message"),
    ({"message": ""}, 422, "invalid", "message"),
    ({"message": " \n"}, 422, "invalid", "message"),
    ({"message": 5}, 422, "invalid", "message"),
    ({"message": None}, 422, "invalid", "message"),
    ({"message": ["hello"]}, 422, "invalid", "message"),
    ({"message": "x" * 300_000}, 422, "invalid", "message"),
    ({"message": "a", "messages": [{"role": "user", "content": "b"}]}, 422, "invalid", "messages"),
    ({"messages": []}, 422, "invalid", "messages"),
    ({"messages": [{"role": "assistant", "content": "hi"}]}, 422, "invalid", "messages"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, 422, "invalid", "messages.0.role"),
    ({"messages": [{"role": "user", "content": ""}]}, 422, "invalid", "messages.0.content"),
    ({"message": "a", "mesage": "b"}, 422, "invalid", "mesage"),
    ({"message": "a", "parameters": {"temprature": 1}}, 422, "invalid", "parameters.temprature"),
    ({"message": "a", "parameters": {"temperature": "hot"}}, 422, "invalid", "parameters.temperature"),
    ({"message": "a", "priority": "high"}, 422, "invalid", "priority"),
    ({"message": "a", "priority": 1.5}, 422, "invalid", "priority"),
    ({"message": "a", "priority": True}, 422, "invalid", "priority"),
    ({"message": "a", "deadline_s": 0}, 422, "invalid", "deadline_s"),
    ({"message": "a", "queue": "no spaces"}, 422, "invalid", "queue"),
    ({"message": "a", "job_id": "mine"}, 422, "invalid", "job_id"),
    ({"message": "a", "metadata": {"x": "y" * 20_000}}, 422, "invalid", "metadata"),
    ({"message": "a", "session_id": UNKNOWN}, 404, "not_found", "session_id"),
    ({"session_id": UNKNOWN, "reply_to": UNKNOWN}, 404, "not_found", "session_id"),
    ({"reply_to": UNKNOWN}, 422, "invalid", "session_id"),
    ({"message": "a", "agent_framework": "crew"}, 422, "invalid", "agent_framework"),
    ({"message": "a", "agent_framework": "none"}, 422, "invalid", "agent_framework"),
    ({"message": "a", "model": "gpt-99"}, 422, "invalid", "model"),
    ({"message": "a", "tools": ["calculator", "rm"]}, 422, "invalid", "tools.1"),
    ({"message": "a", "language": "!!"}, 422, "invalid", "language"),
    ({"message": "a", "images": ["data:"]}, 422, "not_yet", "images"),
    ({"message": "a", "webhook_url": "http://localhost"}, 422, "not_yet", "webhook_url"),
    ({"message": "a", "tenant": "somebody-else"}, 422, "invalid", "tenant"),
    ({"message": "a", "version": 2}, 422, "invalid", "version"),
]


#: (body, status, field)
BAD_SESSIONS: list[tuple[Any, int, str | None]] = [
    ([], 400, None),
    ({"title": "x"}, 422, "title"),
    ({"agent_framework": "crew"}, 422, "agent_framework"),
    ({"model": "gpt-99"}, 422, "model"),
    ({"tools": "calculator"}, 422, "tools"),
    ({"tools": ["rm"]}, 422, "tools.0"),
    ({"metadata": []}, 422, "metadata"),
    ({"metadata": {"x": "y" * 20_000}}, 422, "metadata"),
    ({"user_id": ""}, 422, "user_id"),
    ({"messages": [{"role": "user"}]}, 422, "messages.0.content"),
    ({"tenant": "somebody-else"}, 422, "tenant"),
]

#: (path, field)
BAD_PARAMETERS = [
    ("/v1/jobs?limit=0", "limit"),
    ("/v1/jobs?limit=201", "limit"),
    ("/v1/jobs?limit=1.5", "limit"),
    ("/v1/jobs?limit=" + "9" * 5000, "limit"),
    ("/v1/jobs?before=x", "before"),
    ("/v1/jobs?status=done", "status"),
    ("/v1/jobs?session_id=x", "session_id"),
    ("/v1/jobs?queue=%00", "queue"),
    ("/v1/sessions?limit=-1", "limit"),
    (f"/v1/jobs/{UNKNOWN}?wait=61", "wait"),
    (f"/v1/jobs/{UNKNOWN}?wait=-1", "wait"),
    (f"/v1/jobs/{UNKNOWN}?wait=nan", "wait"),
    (f"/v1/jobs/{UNKNOWN}?wait=soon", "wait"),
]


@pytest.mark.parametrize("stream", ["false", "true"])
async def test_bad_jobs_are_refused_with_field_and_reason(client: GatewayClient, stream: str) -> None:
    for body, status, code, field in BAD_JOBS:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = await client.http.post("/v1/jobs", params={"stream": stream}, content=content)
        said = f"{content[:80]!r}: {response.text}"
        assert response.status_code == status, said
        assert response.headers["content-type"] == "application/problem+json", said
        problem = response.json()
        assert (problem["status"], problem["code"], problem.get("field")) == (status, code, field), said
        assert problem["title"]
        assert problem["detail"]
    assert (await client.get("/v1/jobs"))["data"] == []
    assert (await client.get("/v1/sessions"))["data"] == []


async def test_bad_sessions_are_refused_with_field_and_reason(client: GatewayClient) -> None:
    for body, status, field in BAD_SESSIONS:
        response = await client.post("/v1/sessions", body)
        assert (response.status_code, response.json().get("field")) == (status, field), body


async def test_bad_changes_are_refused(client: GatewayClient) -> None:
    session = (await client.post("/v1/sessions", {})).json()
    for body, field in (
        ({"messages": []}, "messages"),
        ({"parameters": None}, "parameters"),
        ({"active_leaf": "x"}, "active_leaf"),
        ({"model": "gpt-99"}, "model"),
    ):
        response = await client.http.patch(f"/v1/sessions/{session['id']}", json=body)
        assert (response.status_code, response.json()["field"]) == (422, field)


async def test_bad_parameters_are_refused(client: GatewayClient) -> None:
    for path, field in BAD_PARAMETERS:
        response = await client.http.get(path)
        assert (response.status_code, response.json()["field"]) == (422, field), path


async def test_a_bad_stream_parameter_accepts_nothing(client: GatewayClient) -> None:
    response = await client.post("/v1/jobs?stream=maybe", {"message": "hi"})
    assert (response.status_code, response.json()["field"]) == (422, "stream")
    assert (await client.get("/v1/jobs"))["data"] == []


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(serve_gateway: ServeGateway) -> None:
    gateway = await serve_gateway(request_max_bytes=2000)
    async with GatewayClient(gateway.url) as client:
        declared = await client.post("/v1/jobs", {"message": "x" * 3000})

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(30):
                yield b"x" * 100

        counted = await client.http.post("/v1/jobs", content=pieces())
        for response in (declared, counted):
            assert response.status_code == 413
            assert response.json()["code"] == "too_large"
        assert (await client.post("/v1/jobs", {"message": "x" * 1000})).status_code == 202


async def test_unknown_paths_are_problems(client: GatewayClient) -> None:
    for path in ("/nothing", "/v1", "/v1/jobs/", "/v1/jobs/x/y/z", "/v1/job%00s"):
        response = await client.http.get(path)
        assert (response.status_code, response.json()["code"]) == (404, "not_found")
        assert response.headers["content-type"] == "application/problem+json"


async def test_unknown_methods_are_problems_that_name_the_known_ones(client: GatewayClient) -> None:
    response = await client.http.put("/v1/jobs", json={})
    assert (response.status_code, response.json()["code"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == "GET, HEAD, OPTIONS, POST"
    options = await client.http.options("/v1/sessions/x")
    assert (options.status_code, options.headers["allow"]) == (204, "DELETE, GET, HEAD, OPTIONS, PATCH")


async def test_ids_that_nobody_has_are_not_found(client: GatewayClient) -> None:
    for name in ("x", "", UNKNOWN, "%00", "..", "1" * 300):
        for method, path in (
            ("GET", f"/v1/jobs/{name}"),
            ("GET", f"/v1/jobs/{name}/events"),
            ("POST", f"/v1/jobs/{name}/cancel"),
            ("GET", f"/v1/sessions/{name}"),
            ("PATCH", f"/v1/sessions/{name}"),
            ("DELETE", f"/v1/sessions/{name}"),
        ):
            response = await client.http.request(method, path, json={} if method == "PATCH" else None)
            assert response.status_code == 404, (method, path, response.text)


async def test_ids_may_be_spelled_in_any_way_a_uuid_can(client: GatewayClient) -> None:
    job_id = new_id()
    await client.create_job({"message": "hi", "job_id": job_id.upper()})
    assert (await client.get(f"/v1/jobs/{job_id.upper()}"))["id"] == job_id
    assert (await client.get(f"/v1/jobs/{job_id.replace('-', '')}"))["id"] == job_id


async def test_a_bad_cancel_cancels_nothing(client: GatewayClient) -> None:
    job = await client.create_job()
    path = f"/v1/jobs/{job['id']}/cancel"
    for content in (b"{", b'{"why": "x"}', b'{"reason": ""}', b'{"reason": 5}', json.dumps({"reason": "x" * 201})):
        response = await client.http.post(path, content=content)
        assert response.status_code in (400, 422)
    assert (await client.get(f"/v1/jobs/{job['id']}"))["status"] == "queued"
