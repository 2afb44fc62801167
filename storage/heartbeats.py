"""The worker processes that are alive, as a Redis hash: `<namespace>:workers`, worker id → its sign of life as JSON.

Times are those of Redis's own clock, since workers and readers may be on machines that disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from pydantic import ValidationError
from redis.asyncio import Redis

from schemas.heartbeat import HEARTBEAT_STALE_S, WorkerHeartbeat
from schemas.job_event import rfc3339
from storage.clock import MICROSECONDS, to_us

#: The hash outlives its last writer by this; in whole seconds.
_KEY_TTL_S = 120


class Heartbeats:
    """The signs of life of one namespace. Every call raises redis.RedisError or OSError if Redis is away."""

    def __init__(self, redis: Redis, namespace: str) -> None:
        self._redis = redis
        self._key = f"{namespace}:workers"

    async def write(self, heartbeat: WorkerHeartbeat) -> None:
        """Write one worker's sign, its `at` set by Redis's clock, and remove those of processes that died."""
        found, now_us = await self._read()
        dated = heartbeat.model_copy(update={"at": rfc3339(now_us)})
        dead = [worker for worker, sign in found.items() if sign is None or _is_stale(sign, now_us)]
        pipeline = self._redis.pipeline(transaction=True)
        if dead:
            pipeline.hdel(self._key, *dead)
        pipeline.hset(self._key, heartbeat.worker, dated.model_dump_json())
        pipeline.expire(self._key, _KEY_TTL_S)
        await pipeline.execute()

    async def remove(self, worker: str) -> None:
        """Take a worker off the list: it ended in order."""
        await self._redis.hdel(self._key, worker)

    async def alive(self) -> list[tuple[WorkerHeartbeat, float]]:
        """Every worker with a fresh sign and how old that is in seconds, by queue and id."""
        found, now_us = await self._read()
        fresh = [sign for sign in found.values() if sign is not None and not _is_stale(sign, now_us)]
        fresh.sort(key=lambda sign: (sign.queue, sign.worker))
        return [(sign, max(0.0, (now_us - _micros(sign)) / MICROSECONDS)) for sign in fresh]

    async def _read(self) -> tuple[dict[str, WorkerHeartbeat | None], int]:
        """The hash, with None for what nobody can read, and Redis's time."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hgetall(self._key)
        pipeline.time()
        entries, (seconds, micros) = await pipeline.execute()
        found = {worker.decode(): _parsed(sign) for worker, sign in cast("Mapping[bytes, bytes]", entries).items()}
        return found, seconds * MICROSECONDS + micros


def _parsed(sign: bytes) -> WorkerHeartbeat | None:
    try:
        return WorkerHeartbeat.model_validate_json(sign)
    except ValidationError:
        return None


def _micros(heartbeat: WorkerHeartbeat) -> int:
    return to_us(heartbeat.written().timestamp())


def _is_stale(heartbeat: WorkerHeartbeat, now_us: int) -> bool:
    # Both ways: a clock that was set back must not keep the dead alive.
    return abs(now_us - _micros(heartbeat)) > to_us(HEARTBEAT_STALE_S)
