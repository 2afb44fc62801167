"""A person who stops an answer, or talks into it, from outside and with everything running."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx2

from tests.acceptance.running_up import Up, until

#: Code that can be interrupted lets go within a second; a busy test machine may be slower.
SOON_S = 5.0


class Talk:
    """One session, over HTTP."""

    def __init__(self, http: httpx2.Client) -> None:
        self.http = http

    def ask(self, message: str, **fields: Any) -> dict[str, Any]:
        response = self.http.post("/v1/jobs", json={"message": message, "model": "demo-strict", **fields})
        assert response.status_code == 202, response.text
        job: dict[str, Any] = response.json()
        return job

    def job(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = self.http.get(f"/v1/jobs/{job_id}").json()
        return job


async def test_an_answer_is_stopped_and_talked_into_and_the_session_goes_on(tmp_path: Path) -> None:
    async with Up(tmp_path / "data") as up:
        with httpx2.Client(base_url=up.url, timeout=60) as http:
            await talk_into(Talk(http))


async def talk_into(talk: Talk) -> None:
    first = talk.ask("[words=2000 pace=50]")
    session = {"session_id": first["session_id"]}
    await until(lambda: talk.job(first["id"])["status"] == "running")
    began = time.monotonic()
    second = talk.ask("What is 17 * 23?", if_busy="interrupt", **session)
    await until(lambda: talk.job(first["id"])["status"] == "cancelled")
    assert time.monotonic() - began < SOON_S
    await until(lambda: talk.job(second["id"])["status"] == "finished")
    third = talk.ask("[words=2000 pace=50]", **session)
    await until(lambda: talk.job(third["id"])["status"] == "running")
    assert talk.http.post(f"/v1/jobs/{third['id']}/cancel").status_code == 202
    await until(lambda: talk.job(third["id"])["status"] == "cancelled")
    fourth = talk.ask("Still there?", **session)
    await until(lambda: talk.job(fourth["id"])["status"] in ("finished", "dead"))
    assert talk.job(fourth["id"])["status"] == "finished"
