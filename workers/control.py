"""The control channel: tells workers at once what the next lease renewal would tell them anyway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

#: Pause before listening again after Redis went away.
RETRY_S = 1.0

logger = structlog.get_logger(__name__)


def control_channel(namespace: str) -> str:
    """The channel's name."""
    return f"{namespace}:control"


async def send_cancel(redis: Redis, namespace: str, job_id: str, reason: str) -> None:
    """Tell every worker that a running job is to stop; the flag in SQL is what counts. Raises redis.RedisError."""
    await redis.publish(control_channel(namespace), orjson.dumps({"cancel": job_id, "reason": reason}))


class ControlListener:
    """Listens on the control channel for as long as it runs."""

    def __init__(self, redis: Redis, namespace: str, on_cancel: Callable[[str, str], None]) -> None:
        self._redis = redis
        self._channel = control_channel(namespace)
        self._on_cancel = on_cancel

    async def run(self) -> None:
        """Listen until cancelled; Redis may come and go."""
        while True:
            pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
            try:
                await pubsub.subscribe(self._channel)
                while True:
                    message = await pubsub.get_message(timeout=None)
                    if message is not None:
                        self._take(message["data"])
            except (RedisError, OSError) as error:
                logger.warning("the control channel is away", error=type(error).__name__)
                await asyncio.sleep(RETRY_S)
            finally:
                await pubsub.aclose()  # type: ignore[no-untyped-call] # redis-py's

    def _take(self, data: bytes) -> None:
        try:
            order = orjson.loads(data)
            job_id, reason = order["cancel"], order.get("reason", "")
        except (ValueError, TypeError, KeyError, AttributeError):
            logger.warning("ignored an order nobody understands")
            return
        if isinstance(job_id, str) and isinstance(reason, str):
            self._on_cancel(job_id, reason)
