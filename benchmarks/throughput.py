"""How many jobs a second go from acceptance to a saved answer when the model takes no time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.sse_client import follow_new_job
from benchmarks.stack import Stack

QUESTION = "[words=1][pace=0][first=0]"
#: Requests under way at once: enough to keep a worker busy.
CLIENTS = 32


async def measure_throughput(stack: Stack, jobs: int) -> dict[str, Any]:
    """Jobs per second, each followed to its end by a client of its own."""
    waiting = iter(range(jobs))

    async def client() -> None:
        for _ in waiting:
            async for _arrived, _event in follow_new_job(stack.gateway_url, {"message": QUESTION, "tools": []}):
                pass

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    taken = time.perf_counter() - started
    return {"jobs": jobs, "jobs_per_s": round(jobs / taken), "clients": CLIENTS}
