"""Puts a message from the quarantine back on its queue, as it was or corrected."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from schemas.errors import Conflict, QueueUnavailable
from storage.database import Database
from storage.quarantine import REQUEUED, get_lying, resolve
from workers.ring import add_message, encode_message

#: Longer than a requeue takes: of two people at once one is told to look again.
LOCK_S = 15.0
TELL_TIMEOUT_S = 5.0

#: A message has these; an object with neither is a job somebody pushed without a message around it.
_ENVELOPE = frozenset({"actor_name", "args"})


class Requeuer:
    """Requeues entries of the quarantine."""

    def __init__(self, database: Database, redis: Redis, namespace: str) -> None:
        self._database = database
        self._redis = redis
        self._namespace = namespace

    async def requeue(self, tenant: str, entry_id: str, payload: dict[str, Any] | None = None) -> dict[str, Any]:
        """Put the entry back on its queue, with `payload` as its job if that is given; returns its row.

        Queued first and marked afterwards: if this process dies in between, the message is there twice, with the same
        bytes, and so with the same id; the other way round it would be lost.
        Raises NotFound, Conflict, QueueUnavailable and StorageUnavailable.
        """
        entry = await self._database.read(get_lying, tenant, entry_id)
        message = message_of(entry, payload)
        lock = f"{self._namespace}:requeue:{entry_id}"
        try:
            async with asyncio.timeout(TELL_TIMEOUT_S):
                if not await self._redis.set(lock, "1", nx=True, px=round(LOCK_S * 1000)):
                    raise Conflict("somebody is requeueing this entry right now: look at it again")
        except (RedisError, OSError, TimeoutError):
            raise QueueUnavailable from None
        try:
            await self._database.read(get_lying, tenant, entry_id)  # under the lock
            await self._push(entry["queue"], entry_id, message)
            return await self._database.write(resolve, tenant, entry_id, REQUEUED)
        finally:
            await self._let_go(lock)

    async def _push(self, queue: str, entry_id: str, message: bytes) -> None:
        pipeline = self._redis.pipeline(transaction=True)
        add_message(pipeline, self._namespace, queue, entry_id, message)
        try:
            async with asyncio.timeout(TELL_TIMEOUT_S):
                await pipeline.execute()
        except (RedisError, OSError, TimeoutError):
            raise QueueUnavailable from None

    async def _let_go(self, lock: str) -> None:
        try:
            async with asyncio.timeout(TELL_TIMEOUT_S):
                await self._redis.delete(lock)
        except (RedisError, OSError, TimeoutError):
            pass  # it ends by itself


def message_of(entry: dict[str, Any], payload: dict[str, Any] | None) -> bytes:
    """The message to put on the queue; the same bytes each time.

    A corrected `payload` is the message's one argument. What was kept is the whole message where that could not be
    read, and its arguments as a JSON list where those were of no use.
    """
    kept = bytes(entry["payload"]) if payload is None else orjson.dumps([payload])
    arguments = _arguments(kept)
    if arguments is None:
        return kept
    # Not decoded and encoded again: what JSON can say and orjson cannot would change on the way.
    message = encode_message(entry["queue"], entry["id"], entry["created_at"] // 1000)
    return message.replace(b'"args":[]', b'"args":' + arguments, 1)


def _arguments(kept: bytes) -> bytes | None:
    """The arguments as JSON, where there is no message around them."""
    try:
        value = json.loads(kept.decode())
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list):
        return kept
    if isinstance(value, dict) and value and not value.keys() & _ENVELOPE:
        return b"[" + kept + b"]"
    return None
