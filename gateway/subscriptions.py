"""The one pub/sub connection of a gateway process: which channels it listens to, and whether the server knows.

redis-py's own PubSub reconnects in silence, and what was published in between is gone. Here a connection that is lost
is seen: whoever listens is told once its channel is subscribed again, and reads what it has missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import Callable

import structlog
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig

#: Pauses between tries to connect.
FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0
#: How often the server is asked for a sign of life; without one until the next time the connection is given up.
SILENCE_S = 5.0
#: Channels in one command: a reconnect with thousands of them must not build one huge request.
MAX_CHANNELS = 1000

logger = structlog.get_logger(__name__)


class Subscriptions:
    """Keeps the channels of `add` subscribed for as long as `run` runs.

    `on_subscribed` is called each time the server has confirmed a channel: whatever is published from then on comes to
    `on_message`, and whatever was published before may have been missed.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        on_subscribed: Callable[[bytes], None],
        on_message: Callable[[bytes, bytes], None],
    ) -> None:
        self._pool = redis.connection_pool
        self._on_subscribed = on_subscribed
        self._on_message = on_message
        self._wanted: set[bytes] = set()
        #: Channels whose last command on this connection was a SUBSCRIBE.
        self._asked: set[bytes] = set()
        #: How many SUBSCRIBEs of a channel are not confirmed yet: it may have been left and joined again meanwhile.
        self._unconfirmed: Counter[bytes] = Counter()
        self._changed = asyncio.Event()
        #: What the server has said so far: it is alive as long as this grows.
        self._replies = 0
        #: Whether there is a connection at the moment.
        self.connected = False

    def add(self, channel: bytes) -> None:
        """Listen to a channel; `on_subscribed` follows unless it is confirmed already."""
        self._wanted.add(channel)
        self._changed.set()

    def remove(self, channel: bytes) -> None:
        """Stop listening to a channel."""
        self._wanted.discard(channel)
        self._changed.set()

    def confirmed(self, channel: bytes) -> bool:
        """Whether everything published on the channel arrives."""
        return self.connected and channel in self._asked and not self._unconfirmed[channel]

    async def run(self) -> None:
        """Connect, listen, and connect again, until cancelled."""
        pause, away = FIRST_PAUSE_S, False
        while True:
            replies = self._replies
            connection = self._new_connection()
            try:
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
                if away:
                    logger.info("Redis is back: events arrive again")
                    away = False
                await self._listen(connection)
            except (RedisError, OSError) as error:
                if not away:
                    logger.warning("Redis is away: events do not arrive", error=type(error).__name__)
                    away = True
            finally:
                self.connected = False
                await connection.disconnect(nowait=True)
            await asyncio.sleep(pause)
            pause = FIRST_PAUSE_S if self._replies > replies else min(2 * pause, LAST_PAUSE_S)

    def _new_connection(self) -> AbstractConnection:
        """A connection beside the pool's. RESP2, where whatever is published is a plain reply."""
        options = {
            **self._pool.connection_kwargs,
            "protocol": 2,
            "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        }
        return self._pool.connection_class(**options)

    async def _listen(self, connection: AbstractConnection) -> None:
        self._asked.clear()
        self._unconfirmed.clear()
        self._changed.set()
        self.connected = True
        sender = asyncio.create_task(self._send(connection), name="subscriptions-sender")
        try:
            while True:
                self._take(await connection.read_response(timeout=math.inf, disconnect_on_error=False))
        finally:
            # Not by cancelling it: before Python 3.12 `wait_for`, by which redis-py sends, may swallow that.
            await connection.disconnect(nowait=True)
            self._changed.set()
            await asyncio.gather(sender, return_exceptions=True)

    def _take(self, reply: object) -> None:
        self._replies += 1
        match reply:
            case [b"message", bytes(channel), bytes(data)]:
                self._on_message(channel, data)
            case [b"subscribe", bytes(channel), _]:
                self._unconfirmed[channel] -= 1
                if self._unconfirmed[channel] <= 0:
                    del self._unconfirmed[channel]
                    if channel in self._asked:
                        self._on_subscribed(channel)
            case _:  # an unsubscription, or the answer to a PING
                pass

    async def _send(self, connection: AbstractConnection) -> None:
        """Tell the server what has changed, all of it at once, and ask it for signs of life; without one, hang up."""
        loop = asyncio.get_running_loop()
        replies, ask_at = -1, loop.time() + SILENCE_S
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(ask_at):
                        await self._changed.wait()
                if not connection.is_connected:
                    break
                self._changed.clear()
                await self._send_changes(connection)
                if loop.time() >= ask_at:
                    if self._replies == replies:
                        break
                    replies, ask_at = self._replies, loop.time() + SILENCE_S
                    await _command(connection, "PING")
        finally:
            # The reader meets the closed connection and starts over.
            await connection.disconnect(nowait=True)

    async def _send_changes(self, connection: AbstractConnection) -> None:
        left, joined = list(self._asked - self._wanted), list(self._wanted - self._asked)
        self._asked.difference_update(left)
        self._asked.update(joined)
        self._unconfirmed.update(joined)
        for start in range(0, len(left), MAX_CHANNELS):
            await _command(connection, "UNSUBSCRIBE", *left[start : start + MAX_CHANNELS])
        for start in range(0, len(joined), MAX_CHANNELS):
            await _command(connection, "SUBSCRIBE", *joined[start : start + MAX_CHANNELS])


async def _command(connection: AbstractConnection, *words: str | bytes) -> None:
    """Send a command, but never by connecting anew in silence, as redis-py would. Raises RedisError."""
    if not connection.is_connected:
        raise RedisConnectionError("the connection is closed")
    await connection.send_command(*words)
