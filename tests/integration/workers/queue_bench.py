"""What a test asks of a queue and of the worker that serves it."""

from __future__ import annotations

from typing import Any

from storage.tables import jobs, quarantine
from tests.integration.workers.mill import Mill, eventually


async def is_quiet(mill: Mill, queue: str = "chat") -> bool:
    """Whether every message of the queue has been acknowledged."""
    key = f"{mill.settings.namespace}:{queue}"
    if await mill.redis.exists(key, f"{key}.msgs"):
        return False
    acks = [name async for name in mill.redis.scan_iter(f"{mill.settings.namespace}:__acks__.*.{queue}")]
    return not acks


async def quiet(mill: Mill) -> None:
    await eventually(lambda: is_quiet(mill))


async def signs_of_life(mill: Mill, count: int) -> None:
    """Wait until the worker's consumer has shown that it lives this many times more."""
    for _ in range(count):
        before = await _last_sign(mill)

        async def another(before: float = before) -> bool:
            return await _last_sign(mill) > before

        await eventually(another)


async def _last_sign(mill: Mill) -> float:
    signs: Any = await mill.redis.zrange(f"{mill.settings.namespace}:__heartbeats__", 0, -1, withscores=True)
    return max((float(score) for _, score in signs), default=0.0)


async def knows(mill: Mill, job_id: str) -> dict[str, Any]:
    """The job's row, once it is accepted and has ended."""

    async def look() -> bool:
        return bool(await mill.rows(jobs, id=job_id))

    await eventually(look)
    return await mill.ended(job_id)


async def quarantined(mill: Mill, count: int = 1) -> list[dict[str, Any]]:
    async def look() -> list[dict[str, Any]] | None:
        rows = await mill.rows(quarantine)
        return rows if len(rows) >= count else None

    found = await eventually(look)
    assert found is not None
    return found
