"""The queue's consumer: woken by an arrival instead of polling, and never blocked by a message it cannot read.

dramatiq's own consumer polls Redis up to a second apart when idle: 0.37 s at the median before work starts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import redis
from dramatiq import Message
from dramatiq.broker import MessageProxy
from dramatiq.brokers.redis import _RedisConsumer
from dramatiq.errors import ConnectionClosed, DecodeError

from schemas.errors import StorageUnavailable
from workers.hand_back import HandBack

if TYPE_CHECKING:
    from workers.broker import ChatBroker

#: How long one wait for a message or for room lasts; a shutdown is noticed between two of them.
WAIT_S = 0.5

#: Redis is away, or SQL when an unreadable message has to be kept: dramatiq then makes a new consumer.
_AWAY = (redis.RedisError, OSError, StorageUnavailable, TimeoutError)


class QuietMessage(MessageProxy):
    """Shows itself in logs without its arguments: those of a raw producer hold what people wrote."""

    def __str__(self) -> str:
        return f"{self.actor_name} {self.message_id}"

    __repr__ = __str__


class WakingConsumer(_RedisConsumer):
    """Waits on the queue's own list with a command that leaves it as it was, so a raw producer's push wakes it too."""

    broker: ChatBroker

    def __init__(self, broker: ChatBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        super().__init__(broker, queue_name, prefetch, timeout)  # type: ignore[no-untyped-call] # dramatiq's
        #: Set when a message is done with, so that a full consumer does not poll for room.
        self._room = threading.Event()
        #: Redis ids of messages that are decoded and not acknowledged.
        self._taken: set[str] = set()
        try:
            # Redis may have handed messages out and lost the answer. Ringing twice for a job is harmless.
            self.broker.requeue_fetched(queue_name)
        except _AWAY as error:
            raise ConnectionClosed(error) from None

    def __next__(self) -> MessageProxy | None:
        """The next message, or None after a short wait. Raises ConnectionClosed; dramatiq then makes a new consumer."""
        try:
            while self.message_cache:
                message = self._decode(self.message_cache.pop(0))
                if message is not None:
                    self.queued_message_ids.add(message.message_id)
                    return QuietMessage(message)
            # What is outstanding must be read before fetching: afterwards consumption stalls under load.
            self._room.clear()
            room = self.prefetch - self.outstanding_message_count
            if room <= 0 or self.broker.closing:
                if not self._room.wait(WAIT_S):
                    # Fetches nothing, but is a sign of life: without one, others would take the messages for a dead
                    # worker's.
                    self.broker.do_fetch(self.queue_name, 0)
                    self.broker.polled_at = time.monotonic()
                return None
            self.message_cache = self.broker.do_fetch(self.queue_name, room)
            self.broker.polled_at = time.monotonic()
            if not self.message_cache:
                self.broker.wait_for_message(self.queue_name, WAIT_S)
            return None
        except _AWAY as error:
            raise ConnectionClosed(error) from None

    def ack(self, message: Any) -> None:
        """Acknowledge a message, or put it back if that is what became of it.

        If Redis is away it comes again, which is harmless; no thread waits for that.
        """
        redis_id = message.options["redis_message_id"]
        try:
            if isinstance(message._exception, HandBack):
                self.broker.do_requeue(self.queue_name, redis_id)
            else:
                self.broker.do_ack(self.queue_name, redis_id)
        except _AWAY as error:
            self.logger.warning("A message was not acknowledged and will come again: %s", type(error).__name__)
        finally:
            self._done_with(message)

    def nack(self, message: Any) -> None:
        """A message for an actor nobody has: kept for inspection, with its bytes, before it leaves the queue."""
        redis_id = message.options["redis_message_id"]
        try:
            self.broker.keep_unreadable(self.queue_name, redis_id, "unknown actor")
            self.broker.do_ack(self.queue_name, redis_id)
        except _AWAY as error:
            raise ConnectionClosed(error) from None
        self._done_with(message)

    def _done_with(self, message: Any) -> None:
        self.queued_message_ids.discard(message.message_id)
        self._taken.discard(message.options["redis_message_id"])
        self._room.set()

    def _decode(self, data: bytes | None) -> Message[Any] | None:
        if data is None:
            return None  # its body is gone from Redis: the reconciler rings again for what it named
        try:
            message: Message[Any] = Message.decode(data)
            if not (isinstance(message.options, dict) and isinstance(message.kwargs, dict)):
                raise DecodeError("options and kwargs are not objects", data, None)
            if not (isinstance(message.actor_name, str) and isinstance(message.message_id, str)):
                raise DecodeError("actor_name and message_id are not texts", data, None)
        except DecodeError as error:
            redis_id = self.broker.find_fetched(self.queue_name, data, self._taken)
            if redis_id is not None:
                self.broker.keep_unreadable(self.queue_name, redis_id, f"not a message: {error}")
                self.broker.do_ack(self.queue_name, redis_id)
            return None
        redis_id = message.options.get("redis_message_id")
        if not isinstance(redis_id, str) or not self.broker.has_fetched(self.queue_name, redis_id):
            # Written by a producer that does not know of it; without it the message could never be acknowledged.
            redis_id = self.broker.find_fetched(self.queue_name, data, self._taken)
            if redis_id is None:
                return None  # requeued meanwhile: it comes again
        self._taken.add(redis_id)
        # Beside its arguments nothing a message says of itself counts here: not the queue it names, nor options that
        # mean something to dramatiq. It is known by its bytes, so that one that comes again is known again.
        return dataclasses.replace(
            message,
            message_id=str(uuid.uuid5(uuid.NAMESPACE_OID, hashlib.sha256(data).hexdigest())),
            queue_name=self.queue_name,
            options={"redis_message_id": redis_id, "throws": HandBack},
        )
