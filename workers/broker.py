"""The dramatiq broker: carries, wakes, and keeps what nobody can read. It decides nothing about a job."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import Middleware
from redis.backoff import NoBackoff
from redis.retry import Retry

from schemas.errors import ConfigurationError
from schemas.settings import Settings
from storage.redis_client import CONNECT_TIMEOUT_S, SOCKET_TIMEOUT_S
from workers.consumer import WakingConsumer

#: A process whose broker has been silent for this long is taken for dead and its messages go back to the queue.
HEARTBEAT_MS = 15_000
#: Every command also looks for dead processes: without it their messages waited for a lottery.
MAINTENANCE_CHANCE = 1_000_000

#: Called with (queue, reason, bytes) before an unreadable message leaves its queue; raises if it could not be kept.
Keeper = Callable[[str, str, bytes], None]


class ChatBroker(RedisBroker):
    """A RedisBroker with a waking consumer, no delay queue and its own dealing with unreadable messages.

    Raises ConfigurationError for a REDIS_URL that is none.
    """

    def __init__(self, settings: Settings, middleware: list[Middleware]) -> None:
        url = settings.redis_url.get_secret_value()
        super().__init__(  # type: ignore[no-untyped-call] # dramatiq's
            client=_client(url, SOCKET_TIMEOUT_S),
            namespace=settings.namespace,
            middleware=middleware,
            heartbeat_timeout=HEARTBEAT_MS,
            maintenance_chance=MAINTENANCE_CHANCE,
        )
        self._waiting = _client(url, SOCKET_TIMEOUT_S)
        self.keeper: Keeper | None = None
        #: A shutdown has begun: messages are left to other workers.
        self.closing = False
        #: When the consumer last reached Redis, by `time.monotonic()`; None: not yet.
        self.polled_at: float | None = None

    @property
    def consumer_class(self) -> type[WakingConsumer]:
        return WakingConsumer

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue without dramatiq's delay queue: a job's due time stands in SQL."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def wait_for_message(self, queue_name: str, timeout_s: float) -> None:
        """Block until the queue is not empty: moving its first id to where it is changes nothing."""
        key = f"{self.namespace}:{queue_name}"
        self._waiting.blmove(key, key, timeout_s, "LEFT", "LEFT")  # type: ignore[arg-type] # fractions are allowed

    def requeue_fetched(self, queue_name: str) -> None:
        """Put back what this process has fetched and not acknowledged."""
        ids = [redis_id.decode() for redis_id in self._fetched(queue_name)]
        if ids:
            self.do_requeue(queue_name, *ids)

    def has_fetched(self, queue_name: str, redis_id: str) -> bool:
        """Whether this process has fetched a message and not acknowledged it."""
        return bool(self.client.sismember(self._acks(queue_name), redis_id))

    def find_fetched(self, queue_name: str, data: bytes, besides: Container[str]) -> str | None:
        """The id of a fetched message by its bytes, `besides` the ids known: Redis hands out bodies without ids."""
        for redis_id in self._fetched(queue_name):
            key = f"{self.namespace}:{queue_name}.msgs"
            if redis_id.decode() not in besides and self.client.hget(key, redis_id) == data:
                return redis_id.decode()
        return None

    def keep_unreadable(self, queue_name: str, redis_id: str, reason: str) -> None:
        """Hand the message's bytes to the keeper; raises what the keeper raises."""
        data: Any = self.client.hget(f"{self.namespace}:{queue_name}.msgs", redis_id)
        if data is not None and self.keeper is not None:
            self.keeper(queue_name, reason, data)

    def _fetched(self, queue_name: str) -> list[bytes]:
        found: Any = self.client.smembers(self._acks(queue_name))
        return list(found)

    def _acks(self, queue_name: str) -> str:
        return f"{self.namespace}:__acks__.{self.broker_id}.{queue_name}"

    def close(self) -> None:
        super().close()
        self._waiting.close()
        self.client.close()


def _client(url: str, socket_timeout: float) -> redis.Redis:
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=socket_timeout,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 1),
        )
    except ValueError as error:
        raise ConfigurationError(f"REDIS_URL is wrong: {error}") from None
