"""One client's place in a job's events: what it has, what waits for it, and when it is over.

What is published comes to a small inbox. A follower that finds a hole, whose inbox ran over or whose subscription was
renewed is *behind*: it reads the log from its own place on, at its own pace, and then listens again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Self

from gateway.job_reader import JobReader
from schemas.errors import NotFound, StorageUnavailable
from schemas.job_event import EventId, is_terminal
from storage.event_log import Published

#: The place before every event, as the log names it.
START = EventId(0, 0)
#: What waits for a client that reads slowly; one that lets more pile up is served from the log.
INBOX_MAX_BYTES = 64 * 1024
#: How long a new follower waits for its subscription before it reads the log without one.
SUBSCRIBE_TIMEOUT_S = 1.0


class Event(NamedTuple):
    """One event for a client."""

    id: EventId
    data: bytes


class Follower:
    """The events of one job behind a cursor; made and fed by the event hub, read with `next`.

    As a context it is let go at the end: nothing is offered to it any more.
    """

    # There are thousands of them, mostly idle.
    __slots__ = (
        "_at_terminal",
        "_behind",
        "_ended",
        "_inbox",
        "_inbox_bytes",
        "_let_go",
        "_on_gap",
        "_opened",
        "_over",
        "_reader",
        "_waiter",
        "active_at",
        "job_id",
        "known_epoch",
        "position",
    )

    def __init__(
        self,
        reader: JobReader,
        after: EventId,
        let_go: Callable[[Follower], None],
        on_gap: Callable[[], None] = lambda: None,
    ) -> None:
        #: Told of each hole in what was published, which is filled from the log.
        self._on_gap = on_gap
        self.job_id = reader.job_id
        #: The event handed out last.
        self.position = after
        #: When something was handed out or looked for last, in the loop's time.
        self.active_at = asyncio.get_running_loop().time()
        self._reader = reader
        self._let_go = let_go
        self._inbox: list[Published] = []
        self._inbox_bytes = 0
        self._waiter: asyncio.Future[bool] | None = None
        self._opened = False
        self._behind = False
        #: The job's epoch in SQL, as far as whoever asked has looked; what the client has of an older one is void.
        self.known_epoch = 0
        #: SQL says that the job has ended.
        self._ended = False
        #: The event handed out last ends the job, unless a redrive follows it in the log.
        self._at_terminal = False
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go(self)

    async def next(self, idle_s: float) -> list[Event] | None:
        """The next events, oldest first; empty if there were none for `idle_s` seconds, None at the end."""
        if not self._opened:
            await self._open()
        while not self._over:
            events = await self._read_log() if self._behind else self._take_inbox()
            if events:
                return events
            if self._behind or self._inbox:
                continue
            if self._at_terminal and self.position.epoch >= self.known_epoch:
                break
            if self._ended:
                events = await self._read_sql()
                if events:
                    return events
            if not (self._behind or self._inbox or self._over) and not await self._wait(idle_s):
                return []
        self._over = True
        return None

    def skip_to(self, position: EventId) -> None:
        """The client has the events up to this one already."""
        self.position = position

    def offer(self, published: Published) -> None:
        """Take what was published; an inbox that runs over is given up for the log."""
        if self._behind:
            return  # the log will be read, and it has this event
        self._inbox_bytes += len(published.event)
        if self._inbox and self._inbox_bytes > INBOX_MAX_BYTES:
            self.fall_behind()
        else:
            self._inbox.append(published)
            self._wake()

    def fall_behind(self) -> None:
        """Events may have been missed: the log is read from the last one on."""
        self._behind = True
        self._clear_inbox()
        self._wake()

    def end(self) -> None:
        """SQL says that the job has ended, or is gone: what the log does not have comes from there."""
        self._ended = True
        self.fall_behind()

    def close(self) -> None:
        """Hand out nothing more: the client is gone, or the gateway is stopping."""
        self._over = True
        self._wake()

    def idle_since(self, time: float) -> bool:
        """Whether nothing was handed out since then."""
        return self._opened and self.active_at <= time

    async def _open(self) -> None:
        """Wait for the subscription, so that what the first reading of the log does not find is published to us."""
        if not (self._behind or self._over):
            await self._wait(SUBSCRIBE_TIMEOUT_S)
        self._opened = True
        self.fall_behind()

    async def _read_log(self) -> list[Event]:
        self._behind = False  # from here on the inbox takes what is published
        entries, more = await self._reader.read_log(self.position)
        self._behind |= more
        if not entries and not self._ended and (self.position == START or self.position.epoch < self.known_epoch):
            # The log has expired, was lost or cannot be read, so what SQL knows comes first.
            return await self._read_sql()
        return self._hand_out([Event(entry.id, entry.event) for entry in entries])

    async def _read_sql(self) -> list[Event]:
        """The event of the last transition, under its id, if the client does not have it."""
        try:
            event_id, data, self._ended = await self._reader.last_event()
        except NotFound:
            self._over = True
            return []
        except StorageUnavailable:
            return []
        if event_id > self.position:
            return self._hand_out([Event(event_id, data)])
        self._over |= self._ended
        return []

    def _take_inbox(self) -> list[Event]:
        events: list[Event] = []
        position = self.position
        for published in self._inbox:
            if published.id <= position:
                continue
            if published.previous != position:
                self._behind = True  # a hole
                self._on_gap()
                break
            position = published.id
            events.append(Event(position, published.event))
        self._clear_inbox()
        return self._hand_out(events)

    def _hand_out(self, events: list[Event]) -> list[Event]:
        if events:
            self.position = events[-1].id
            self.active_at = asyncio.get_running_loop().time()
            self._at_terminal = is_terminal(events[-1].data)
            if self._at_terminal and self.position.epoch < self.known_epoch:
                self._behind = True  # the job was redriven since: what follows is in the log, or else in SQL
        return events

    def _clear_inbox(self) -> None:
        self._inbox.clear()
        self._inbox_bytes = 0

    async def _wait(self, seconds: float) -> bool:
        """Wait until something happens; False if nothing did."""
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = loop.call_later(seconds, _settle, waiter, False)
        try:
            happened: bool = await waiter
            return happened
        finally:
            timer.cancel()
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None:
            _settle(self._waiter, True)


def _settle(waiter: asyncio.Future[bool], result: bool) -> None:
    if not waiter.done():
        waiter.set_result(result)
