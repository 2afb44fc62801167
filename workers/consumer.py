"""The queue's consumer: woken by an arrival instead of polling, and never blocked by a message it cannot read.

dramatiq's own consumer polls Redis up to a second apart when idle: 0.37 s at the median before work starts.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import redis
from dramatiq import Message
from dramatiq.broker import MessageProxy
from dramatiq.brokers.redis import _RedisConsumer
from dramatiq.errors import ConnectionClosed, DecodeError

if TYPE_CHECKING:
    from workers.broker import ChatBroker

#: How long one wait for a message or for room lasts; a shutdown is noticed between two of them.
WAIT_S = 0.25


class WakingConsumer(_RedisConsumer):
    """Waits on the queue's own list with a command that leaves it as it was, so a raw producer's push wakes it too."""

    broker: ChatBroker

    def __init__(self, broker: ChatBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        super().__init__(broker, queue_name, prefetch, timeout)  # type: ignore[no-untyped-call] # dramatiq's
        #: Set when a message is done with, so that a full consumer does not poll for room.
        self._room = threading.Event()
        # Redis may have handed messages out and lost the answer. Ringing twice for a job is harmless.
        self.broker.requeue_fetched(queue_name)

    def __next__(self) -> MessageProxy | None:
        """The next message, or None after a short wait. Raises ConnectionClosed; dramatiq then makes a new consumer."""
        try:
            while self.message_cache:
                message = self._decode(self.message_cache.pop(0))
                if message is not None:
                    self.queued_message_ids.add(message.message_id)
                    return MessageProxy(message)
            # What is outstanding must be read before fetching: afterwards consumption stalls under load.
            self._room.clear()
            room = self.prefetch - self.outstanding_message_count
            if room <= 0:
                self._room.wait(WAIT_S)
                return None
            self.message_cache = self.broker.do_fetch(self.queue_name, room)
            if not self.message_cache:
                self.broker.wait_for_message(self.queue_name, WAIT_S)
            return None
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise ConnectionClosed(error) from None

    def ack(self, message: Any) -> None:
        try:
            super().ack(message)  # type: ignore[no-untyped-call] # dramatiq's
        except redis.TimeoutError as error:
            raise ConnectionClosed(error) from None
        finally:
            self._room.set()

    def nack(self, message: Any) -> None:
        """A message for an actor nobody has: kept for inspection, with its bytes, before it leaves the queue."""
        try:
            self.broker.keep_unreadable(self.queue_name, message.options["redis_message_id"], "unknown actor")
            self.broker.do_ack(self.queue_name, message.options["redis_message_id"])
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise ConnectionClosed(error) from None
        finally:
            self.queued_message_ids.discard(message.message_id)
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
            redis_id = self.broker.find_fetched(self.queue_name, data)
            if redis_id is not None:
                self.broker.keep_unreadable(self.queue_name, redis_id, f"not a message: {error}")
                self.broker.do_ack(self.queue_name, redis_id)
            return None
        if "redis_message_id" not in message.options:
            # Written by a producer that does not know of it; without it the message could never be acknowledged.
            message.options["redis_message_id"] = self.broker.find_fetched(self.queue_name, data)
        # dramatiq looks up who acknowledges by this name; the list it came from is what counts.
        return message.copy(queue_name=self.queue_name)
