"""Dead letters from the outside: a real `up`, its command line, and processes that are killed in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx2

from tests.acceptance.running_up import Up, environment
from tests.integration.workers.raw_redis import RawRedis

DIES = {"message": "hello", "model": "demo-fault-status-400"}
JOBS = 12
GOOD = "01a22e77-b012-7487-bbca-4f0f123f3171"
#: Longer than anything here takes.
PATIENCE_S = 60.0


async def command(up: Up, *arguments: str) -> asyncio.subprocess.Process:
    """A `chatmill` command, started."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "cli.main", "--url", up.url, *arguments),
        env=environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=up.data,
    )


async def chatmill(up: Up, *arguments: str) -> str:
    """What a command prints; it must work."""
    process = await command(up, *arguments)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def dead(client: httpx2.AsyncClient, count: int) -> list[str]:
    """Jobs that are dead."""
    ids = [(await client.post("/v1/jobs", json=DIES)).json()["id"] for _ in range(count)]
    for job_id in ids:
        job = (await client.get(f"/v1/jobs/{job_id}", params={"wait": "60"})).json()
        assert job["status"] == "dead", job
    return ids


async def listed(client: httpx2.AsyncClient, path: str) -> list[dict[str, Any]]:
    """What a list holds once it holds something."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found: list[dict[str, Any]] = (await client.get(path)).json()["data"]
            if found:
                return found
            await asyncio.sleep(0.05)


async def answered(client: httpx2.AsyncClient, job_id: str) -> dict[str, Any]:
    """A raw producer's job once it is there and has ended."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            response = await client.get(f"/v1/jobs/{job_id}", params={"wait": "60"})
            if response.status_code == 200:
                job: dict[str, Any] = response.json()
                return job
            await asyncio.sleep(0.05)


async def until_run(client: httpx2.AsyncClient, run_id: str, *, done: int) -> dict[str, Any]:
    """The bulk run once it has done so much, or has ended; the gateway may be away meanwhile."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                run: dict[str, Any] = (await client.get(f"/v1/bulk-runs/{run_id}")).json()
                if run["done"] >= done or run["state"] != "running":
                    return run
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.05)


async def test_a_bulk_redrive_survives_the_death_of_every_process_that_works_on_it(tmp_path: Path) -> None:
    async with Up(tmp_path) as up, httpx2.AsyncClient(base_url=up.url, timeout=90) as client:
        ids = await dead(client, JOBS)
        run = (await client.post("/v1/dead-letters/redrive", json={"all": True, "rate": 5})).json()
        await until_run(client, run["id"], done=3)
        for service in ("worker", "gateway"):
            os.kill(up.run["pids"][service], signal.SIGKILL)
        run = await until_run(client, run["id"], done=JOBS)
        if run["state"] == "running":
            run = await until_run(client, run["id"], done=JOBS + 1)
        assert (run["state"], run["done"], run["skipped"]) == ("finished", JOBS, 0)
        for job_id in ids:
            job = (await client.get(f"/v1/jobs/{job_id}", params={"wait": "60"})).json()
            assert (job["status"], job["attempt"]) == ("dead", 2), "each ran once more, and only once"


async def test_ctrl_c_stops_a_bulk_run_and_says_what_was_done(tmp_path: Path) -> None:
    async with Up(tmp_path) as up, httpx2.AsyncClient(base_url=up.url, timeout=90) as client:
        await dead(client, 4)
        process = await command(up, "dead", "redrive", "--code", "bad_request", "--rate", "0.5")
        runs = await listed(client, "/v1/bulk-runs")
        await until_run(client, runs[0]["id"], done=1)
        await asyncio.sleep(0.5)  # it may not look yet whether somebody interrupts it
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
        run = await until_run(client, runs[0]["id"], done=5)
        assert (process.returncode, run["state"]) == (130, "aborted"), err
        assert out.decode() == f"{run['done']} of 4 redriven; aborted\n"
        letters = await chatmill(up, "dead", "list", "--json")
        shown = await chatmill(up, "dead", "show", json.loads(letters.splitlines()[0])["id"])
        assert "the model provider refuses the request" in shown
        assert "4 of 4" in await chatmill(up, "dead", "discard", "--all", "--yes")


async def test_garbage_is_kept_shown_corrected_and_answered(tmp_path: Path) -> None:
    async with Up(tmp_path) as up, httpx2.AsyncClient(base_url=up.url, timeout=90) as client:
        with RawRedis(up.run["redis_url"]) as raw:
            raw.enqueue("chatmill", "chat", "garbage", b"\xff\x00 not json")
            raw.send("chatmill", {"job_id": GOOD, "message": "hi"})
        assert (await answered(client, GOOD))["status"] == "finished"
        (entry,) = (await client.get("/v1/quarantine")).json()["data"]
        assert "ff 00 20 6e" in await chatmill(up, "quarantine", "show", entry["id"])
        # As it was: nobody can read it this time either, and it comes back as another entry.
        await chatmill(up, "quarantine", "requeue", entry["id"])
        lying = await listed(client, "/v1/quarantine")
        assert lying[0]["id"] != entry["id"]
        await chatmill(up, "quarantine", "requeue", lying[0]["id"], "--payload", '{"message":"Hello"}')
        job = await answered(client, lying[0]["id"])
        assert job["status"] == "finished"
        assert (await client.get("/v1/quarantine")).json()["data"] == []
