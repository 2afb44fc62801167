"""Ringing the doorbell: one dramatiq message that says "look at this queue".

Written by hand, as any language may write it (docs/wire.md): dramatiq's own broker is synchronous, and the gateway
must not load what a worker loads.
"""

from __future__ import annotations

import time
from typing import Any

import orjson
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from schemas.ids import new_id

#: The one actor of chatmill.
ACTOR_NAME = "chat"


def wire_message(queue: str, *arguments: Any) -> tuple[str, bytes]:
    """(redis message id, message) as dramatiq's Redis broker keeps them."""
    redis_id = new_id()
    return redis_id, encode_message(queue, redis_id, time.time_ns() // 1_000_000, *arguments)


def encode_message(queue: str, redis_id: str, at_ms: int, *arguments: Any) -> bytes:
    """The message with this id and time; the same bytes each time."""
    return orjson.dumps(
        {
            "queue_name": queue,
            "actor_name": ACTOR_NAME,
            "args": arguments,
            "kwargs": {},
            "options": {"redis_message_id": redis_id},
            "message_id": redis_id,
            "message_timestamp": at_ms,
        }
    )


async def ring(redis: Redis, namespace: str, queue: str, job_id: str | None = None, *, times: int = 1) -> None:
    """Ring for a queue; a ring too many is harmless. Raises redis.RedisError."""
    pipeline = redis.pipeline(transaction=True)
    for _ in range(times):
        add_ring(pipeline, namespace, queue, job_id)
    await pipeline.execute()


def add_ring(pipeline: Pipeline, namespace: str, queue: str, job_id: str | None) -> None:
    """Ring as part of a round trip that somebody else sends."""
    add_message(pipeline, namespace, queue, *wire_message(queue, {"job_id": job_id} if job_id is not None else {}))


def add_message(pipeline: Pipeline, namespace: str, queue: str, redis_id: str, message: bytes) -> None:
    """Put a message on a queue as part of a transaction."""
    key = f"{namespace}:{queue}"
    pipeline.hset(f"{key}.msgs", redis_id, message)
    pipeline.rpush(key, redis_id)


async def waiting_rings(redis: Redis, namespace: str, queue: str) -> int:
    """How many messages wait on a queue. Raises redis.RedisError."""
    return int(await redis.llen(f"{namespace}:{queue}"))
