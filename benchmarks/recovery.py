"""From kill -9 of a worker to the `started` of the next attempt, as a client that follows the job sees it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx2
import orjson
import psutil

from benchmarks.figures import Spread
from benchmarks.stack import Stack

#: Jobs that run when a worker is killed, in all.
JOBS = 20
#: So slow that none of them ends by itself.
MESSAGE = "[words=2000] [pace=200]"
#: How often a worker renews its leases.
RENEWAL_S = 5.0
#: A job that is not taken up again by then never will be.
PATIENCE_S = 120.0


@dataclass(slots=True)
class _Followed:
    """A job, and when its attempts began."""

    job_id: str
    #: Of the attempt that runs.
    worker: str = ""
    started: asyncio.Event = field(default_factory=asyncio.Event)
    started_at: float = 0.0


async def measure_recovery(stack: Stack, rounds: int) -> dict[str, Any]:
    """Kill one of two workers in each round, and start another in its place."""
    took: list[float] = []
    workers = [stack.processes["worker"], await stack.start_worker()]
    async with httpx2.AsyncClient(base_url=stack.gateway_url, timeout=None) as client:
        for _ in range(rounds):
            await _until_ready(client, len(workers))
            followed = [_Followed(await _ask(client)) for _ in range(JOBS)]
            tasks = [asyncio.create_task(_follow(client, one)) for one in followed]
            await asyncio.wait_for(asyncio.gather(*(one.started.wait() for one in followed)), PATIENCE_S)
            # At any moment of the lease's renewals.
            await asyncio.sleep(random.uniform(0, RENEWAL_S))
            victim = workers.pop(0)
            pids = {str(process.pid) for process in (victim, *victim.children(recursive=True))}
            lost = [one for one in followed if one.worker.split("-")[-2] in pids]
            for one in lost:
                one.started.clear()
            killed_at = time.monotonic()
            _kill(victim)
            await asyncio.wait_for(asyncio.gather(*(one.started.wait() for one in lost)), PATIENCE_S)
            took += [one.started_at - killed_at for one in lost]
            await asyncio.gather(*(client.post(f"/v1/jobs/{one.job_id}/cancel") for one in followed))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            workers.append(await stack.start_worker())
            await _until_ready(client, len(workers))
    spread = Spread.of(took)
    ordered = sorted(took)
    return {
        "p50_s": round(spread.p50, 2),
        "p95_s": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))], 2),
        "longest_s": round(ordered[-1], 2),
        "jobs": len(took),
        "kills": rounds,
    }


async def _until_ready(client: httpx2.AsyncClient, workers: int) -> None:
    """Wait until so many worker processes say that they are there."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            overview = (await client.get("/v1/overview")).json()
            if sum(worker["age_s"] < RENEWAL_S for worker in overview["workers"] or ()) >= workers:
                return
            await asyncio.sleep(0.2)


async def _ask(client: httpx2.AsyncClient) -> str:
    response = await client.post("/v1/jobs", json={"message": MESSAGE})
    return str(response.raise_for_status().json()["id"])


async def _follow(client: httpx2.AsyncClient, one: _Followed) -> None:
    async with client.stream("GET", f"/v1/jobs/{one.job_id}/events") as response:
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            event = orjson.loads(line[5:])
            if event["kind"] == "started":
                one.started_at, one.worker = time.monotonic(), event["worker"]
                one.started.set()


def _kill(root: psutil.Process) -> None:
    """All of it at once, as a power cut would."""
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
