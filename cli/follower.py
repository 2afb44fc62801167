"""Following a job to its end, over as many connections as it takes."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import httpx2
import orjson

from cli.client import Refused
from cli.failure import CommandFailed, GatewayUnreachable
from cli.sse import SseParser
from schemas.fold import Fold
from schemas.job_event import EventId

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from cli.client import Client
    from cli.sse import ServerSentEvent

#: Pauses between two connections double from the first to the last of these seconds.
FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 5.0
#: A gateway that is being replaced is back sooner.
GIVE_UP_S = 120.0
#: A job that was redriven has an older terminal event in its log. The stream ends soon after the one that counts.
LINGER_S = 1.0
#: Answers of a gateway, or of a proxy before it, that is not itself at the moment.
_PASSING = frozenset({429, 500, 502, 503, 504})


class Follower:
    """Reads a job's events, each exactly once and in order, and folds them.

    `fold` holds the text as it is after the event told last. `reached` says that the gateway has answered before, so
    that it is waited for from the first connection on. `on_trouble` is called with the reason once for every
    interruption that does not heal at the first try.
    """

    def __init__(
        self,
        client: Client,
        job_id: str,
        *,
        after: EventId | None = None,
        reached: bool = False,
        on_trouble: Callable[[str], None] = lambda reason: None,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self.fold = Fold()
        if after is not None:
            self.fold.last_id = after
        self._cursor = after
        self._client = client
        self._job_id = job_id
        self._on_trouble = on_trouble
        self._give_up_s = give_up_s
        self._failures = 0
        #: Monotonic time of the last sign of life; None before the first.
        self._heard_at = time.monotonic() if reached else None

    async def events(self) -> AsyncGenerator[tuple[EventId, dict[str, Any]]]:
        """Every event with its id, up to the terminal one.

        Raises GatewayUnreachable if the gateway was never there or stays away, Refused if it does not know the job.
        """
        while True:
            cursor = None if self._cursor is None else str(self._cursor)
            try:
                async with self._client.open_events(self._job_id, cursor) as pieces:
                    if pieces is None:
                        return
                    async with aclosing(self._read(pieces)) as events:
                        async for event_id, event in events:
                            yield event_id, event
                    reason = "the stream ended early"
            except httpx2.TransportError as error:
                if self._heard_at is None:
                    raise self._client.unreachable(error) from error
                reason = str(error) or type(error).__name__
            except Refused as error:
                if error.status not in _PASSING or self._heard_at is None:
                    raise
                reason = str(error)
            if self.fold.terminal is not None:
                return
            await self._pause(reason)

    async def _read(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[tuple[EventId, dict[str, Any]]]:
        """The new events of one connection."""
        parser = SseParser()
        self._heard_at = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(None if self.fold.terminal is None else LINGER_S):
                    piece = await anext(pieces)
            except (StopAsyncIteration, TimeoutError):
                return
            self._heard_at = time.monotonic()
            for frame in parser.feed(piece):
                event_id, event = self._decode(frame)
                if self.fold.apply(event_id, event):
                    self._cursor = event_id
                    self._failures = 0
                    yield event_id, event

    def _decode(self, frame: ServerSentEvent) -> tuple[EventId, dict[str, Any]]:
        try:
            event = orjson.loads(frame.data)
            return EventId.parse(frame.id), {"kind": event["kind"], **event}
        except (ValueError, TypeError, KeyError):
            raise CommandFailed(f"{self._client.url} sent something that is not an event of a job") from None

    async def _pause(self, reason: str) -> None:
        """Wait before the next connection, longer each time."""
        heard_at = self._heard_at or 0.0
        if time.monotonic() - heard_at > self._give_up_s:
            raise GatewayUnreachable(f"lost contact with {self._client.url} ({reason})")
        self._failures += 1
        if self._failures == 2:
            self._on_trouble(reason)
        pause = min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LAST_PAUSE_S)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads clients, keeps no secret
