"""What the tests of the event log do again and again, in short words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio.client import PubSub

from storage.event_log import Batch, EventLog, Published, parse_published

LIVE_S, ENDED_S = 1000, 10


def batch(job_id: str, epoch: int, base: int, *events: bytes, terminal: bool = False) -> Batch:
    return Batch(job_id, epoch, base, events or (b'{"n":1}',), terminal)


async def ids(log: EventLog, job_id: str) -> list[str]:
    return [str(entry.id) for entry in await log.read(job_id)]


@asynccontextmanager
async def listening(log: EventLog, job_id: str) -> AsyncIterator[PubSub]:
    async with log.redis.pubsub() as pubsub:
        await pubsub.subscribe(log.key(job_id))
        await pubsub.get_message(timeout=5)
        yield pubsub


async def heard(pubsub: PubSub) -> list[Published]:
    """What was published so far: everything that is published before an answer is sent before it, too."""
    found: list[Published] = []
    while (message := await pubsub.get_message(timeout=0.05)) is not None:
        if message["type"] == "message":
            found.append(parse_published(message["data"]))
    return found
