"""A gateway that accepts every job and plays one answer."""

from __future__ import annotations

from typing import Any

from tests.unit.cli.event_logs import JOB_ID, SESSION_ID, short_log
from tests.unit.cli.fake_gateway import FakeGateway, Log, Reply, Request

JOB = {
    "id": JOB_ID,
    "status": "finished",
    "queue": "chat",
    "session_id": SESSION_ID,
    "user_message_id": "01a22e79-fa63-746d-bdb5-1623e3b9c1f2",
    "attempt": 1,
    "failures": 0,
    "agent_framework": "langgraph",
    "model": None,
    "created_at": "2026-11-29T12:00:00.000Z",
    "ended_at": "2026-11-29T12:01:30.000Z",
    "error_code": None,
    "result": {"text": "Hello\x1b[31m there.", "usage": {"total_tokens": 7}},
    "error": None,
    "cancel": None,
}
SESSION = {
    "id": SESSION_ID,
    "agent_framework": "langgraph",
    "model": "demo",
    "system": None,
    "language": None,
    "updated_at": "2026-11-29T12:00:00.000Z",
}


def accepting(log: Log = ()) -> FakeGateway:
    """A gateway that accepts every job, under the id it comes with, and plays the log for it."""

    def accept(request: Request) -> Reply:
        job_id = request.json()["job_id"]
        gateway.logs[job_id] = log or short_log()
        return Reply(202, {**JOB, "id": job_id, "status": "queued", "result": None, "ended_at": None})

    gateway = FakeGateway(replies={("POST", "/v1/jobs"): accept, ("GET", "/healthz"): Reply(200, {"status": "ok"})})
    return gateway


def sent(gateway: FakeGateway, number: int = -1) -> dict[str, Any]:
    """The body of a job the gateway was sent, without its id."""
    bodies = [request.json() for request in gateway.requests if request.method == "POST" and request.body]
    return {name: value for name, value in bodies[number].items() if name != "job_id"}
