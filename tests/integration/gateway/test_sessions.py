"""Sessions over HTTP: made, read, changed, removed."""

from __future__ import annotations

from typing import Any

from storage.event_log import EventLog
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.played import PlayedWorker

CALL = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "1+1"}'}}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "1+1?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "2"},
    {"role": "assistant", "content": "It is 2."},
]


async def create(client: GatewayClient, body: dict[str, Any]) -> dict[str, Any]:
    response = await client.post("/v1/sessions", body)
    assert response.status_code == 201, response.text
    session: dict[str, Any] = response.json()
    assert response.headers["location"] == f"/v1/sessions/{session['id']}"
    return session


async def test_a_session_keeps_its_settings(client: GatewayClient) -> None:
    settings = {
        "agent_framework": "echo",
        "model": "demo",
        "system": "Be kind.",
        "language": "pt-BR",
        "tools": ["calculator"],
        "parameters": {"temperature": 0.5},
        "user_id": "u1",
        "metadata": {"from": "test"},
    }
    session = await create(client, settings)
    assert {name: session[name] for name in settings} == settings
    assert session["active_leaf"] is None
    shown = await client.get(f"/v1/sessions/{session['id']}")
    assert shown == {**session, "messages": [], "active_branch": []}


async def test_an_empty_session_has_the_defaults(client: GatewayClient) -> None:
    session = await create(client, {})
    assert (session["agent_framework"], session["model"], session["tools"]) == ("langgraph", None, None)


async def test_a_conversation_held_elsewhere_is_taken_over_and_talked_on(
    client: GatewayClient, worker: PlayedWorker
) -> None:
    session = await create(client, {"messages": HISTORY})
    shown = await client.get(f"/v1/sessions/{session['id']}")
    assert [message["role"] for message in shown["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert [message["id"] for message in shown["messages"]] == shown["active_branch"]
    assert shown["messages"][1]["content"] == "What is 1+1?"
    assert shown["messages"][2]["tool_calls"] == [{"id": "c1", "name": "calculator", "args": {"expression": "1+1"}}]
    assert shown["active_leaf"] == shown["messages"][-1]["id"]
    await client.create_job({"session_id": session["id"], "message": "And 2+2?"})
    attempt = await worker.claim()
    assert attempt.claim.history_leaf == shown["active_leaf"]


async def test_a_history_may_end_with_any_role(client: GatewayClient) -> None:
    for length in (1, 2, 4, 5):
        await create(client, {"messages": HISTORY[:length]})


async def test_a_history_that_no_question_can_follow_is_refused(client: GatewayClient) -> None:
    response = await client.post("/v1/sessions", {"messages": HISTORY[:3]})
    assert response.status_code == 422
    assert response.json()["field"] == "messages.2"
    orphan = await client.post("/v1/sessions", {"messages": [HISTORY[1], HISTORY[3]]})
    assert orphan.json()["field"] == "messages.1.tool_call_id"


async def test_sessions_are_listed_newest_first_in_pages(client: GatewayClient) -> None:
    ids = {(await create(client, {"metadata": {"number": number}}))["id"] for number in range(5)}
    await client.create_job({"messages": [{"role": "user", "content": "stateless"}]})
    first = await client.get("/v1/sessions?limit=3")
    second = await client.get(f"/v1/sessions?limit=3&before={first['next']}")
    assert {session["id"] for session in first["data"] + second["data"]} == ids
    assert second["next"] is None


async def test_a_change_sets_what_it_names_and_leaves_the_rest(client: GatewayClient) -> None:
    session = await create(client, {"system": "Be kind.", "model": "demo", "agent_framework": "echo"})
    path = f"/v1/sessions/{session['id']}"
    response = await client.http.patch(path, json={"system": None, "parameters": {"seed": 7}})
    assert response.status_code == 200
    changed = response.json()
    assert (changed["system"], changed["parameters"], changed["model"]) == (None, {"seed": 7}, "demo")
    assert changed["updated_at"] >= session["updated_at"]
    back = await client.http.patch(path, json={"agent_framework": None})
    assert back.json()["agent_framework"] == "langgraph"


async def test_the_branch_talked_on_can_be_chosen(client: GatewayClient) -> None:
    session = await create(client, {"messages": HISTORY})
    path = f"/v1/sessions/{session['id']}"
    messages = (await client.get(path))["messages"]
    response = await client.http.patch(path, json={"active_leaf": messages[1]["id"]})
    assert response.json()["active_leaf"] == messages[1]["id"]
    assert (await client.get(path))["active_branch"] == [message["id"] for message in messages[:2]]
    assert (await client.http.patch(path, json={"active_leaf": None})).json()["active_leaf"] is None


async def test_a_branch_cannot_end_in_a_call_without_its_result(client: GatewayClient) -> None:
    session = await create(client, {"messages": HISTORY})
    path = f"/v1/sessions/{session['id']}"
    messages = (await client.get(path))["messages"]
    response = await client.http.patch(path, json={"active_leaf": messages[2]["id"]})
    assert (response.status_code, response.json()["field"]) == (422, "active_leaf")
    assert (await client.http.patch(path, json={"active_leaf": messages[3]["id"]})).status_code == 200


async def test_a_message_of_another_session_cannot_be_talked_on(client: GatewayClient) -> None:
    session, other = await create(client, {}), await create(client, {"messages": HISTORY})
    response = await client.http.patch(f"/v1/sessions/{session['id']}", json={"active_leaf": other["active_leaf"]})
    assert (response.status_code, response.json()["field"]) == (404, "active_leaf")


async def test_a_session_without_an_agent_only_stores(client: GatewayClient) -> None:
    session = await create(client, {"agent_framework": "none", "messages": HISTORY})
    response = await client.post("/v1/jobs", {"session_id": session["id"], "message": "anybody?"})
    assert (response.status_code, response.json()["field"]) == (422, "agent_framework")


async def test_a_removed_session_is_gone_with_its_jobs_and_events(
    client: GatewayClient, worker: PlayedWorker, log: EventLog
) -> None:
    job = await client.create_job()
    path = f"/v1/sessions/{job['session_id']}"
    busy = await client.http.delete(path)
    assert (busy.status_code, busy.json()["code"]) == (409, "conflict")
    await (await worker.claim()).finish("done")
    assert (await client.http.delete(path)).status_code == 204
    for gone in (path, f"/v1/jobs/{job['id']}", f"/v1/jobs/{job['id']}/events"):
        assert (await client.http.get(gone)).status_code == 404
    assert await log.last(job["id"]) is None
    assert (await client.http.delete(path)).status_code == 404


async def test_what_waits_to_be_answered_is_shown_without_a_place(client: GatewayClient) -> None:
    job = await client.create_job()
    (message,) = (await client.get(f"/v1/sessions/{job['session_id']}"))["messages"]
    assert (message["placed"], message["parent_id"], message["job_id"]) == (False, None, job["id"])
