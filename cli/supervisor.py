"""Keeps services running: starts them, starts them again when they end, and stops them in order."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from cli.child import Child, ChildFailed, ending

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds of the time to stop that are kept back for each service that is still to be stopped.
RESERVE_S = 0.3
#: How often the logs are kept within their bounds.
TRIM_PAUSE_S = 60.0


class Service(Protocol):
    """Something that is kept running."""

    @property
    def name(self) -> str:
        """For messages, and the name of its log."""
        ...

    @property
    def grace_s(self) -> float:
        """How long it may take to stop, in seconds."""
        ...

    async def start(self) -> Child:
        """Start it and return once it serves. Raises ChildFailed, and then nothing of it is left."""
        ...


@dataclass(frozen=True)
class Backoff:
    """How long a service rests before it is started again, in seconds: `first_s`, then twice as long each time."""

    first_s: float = 0.5
    last_s: float = 30.0
    #: A service that ran this long has recovered: its next end counts as its first.
    stable_s: float = 60.0
    #: From this end in a row on, the end of the service's log is shown.
    show_log_after: int = 3

    def pause_s(self, ends: int) -> float:
        return min(self.first_s * 2.0 ** min(ends - 1, 16), self.last_s)


@dataclass
class _Kept:
    service: Service
    child: Child | None = None
    task: asyncio.Task[None] | None = None


@dataclass
class Supervisor:
    """Services in the order in which they were started; they are stopped in the opposite order.

    `report` is called with a text for people when something is wrong or right again, `changed` whenever `pids` has
    changed.
    """

    report: Callable[[str], None]
    changed: Callable[[], None] = lambda: None
    backoff: Backoff = Backoff()
    _kept: list[_Kept] = field(default_factory=list)

    @property
    def pids(self) -> dict[str, int]:
        """The process of each running service, by its name, in the order in which they are to be stopped."""
        return {kept.service.name: kept.child.pid for kept in reversed(self._kept) if kept.child is not None}

    async def start(self, service: Service) -> None:
        """Start a service and keep it running from now on. Raises ChildFailed if this first start fails."""
        kept = _Kept(service)
        self._kept.append(kept)
        await self._start(kept)
        kept.task = asyncio.create_task(self._keep(kept))

    async def stop(self, within_s: float) -> None:
        """Stop all services, the last one first, in about `within_s` seconds altogether."""
        deadline = time.monotonic() + within_s
        tasks = [kept.task for kept in self._kept if kept.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        while self._kept:
            left = deadline - time.monotonic() - RESERVE_S * (len(self._kept) - 1)
            kept = self._kept[-1]
            if kept.child is not None:
                await kept.child.stop(max(0.0, min(kept.service.grace_s, left)))
            self._kept.pop()

    def kill(self) -> None:
        """End all services at once; a `stop()` under way then returns."""
        for kept in self._kept:
            if kept.child is not None:
                kept.child.kill()

    async def _start(self, kept: _Kept) -> None:
        kept.child = await kept.service.start()
        self.changed()

    async def _keep(self, kept: _Kept) -> None:
        """Wait for the service's end and start it again, for ever."""
        name = kept.service.name
        ends = 0
        while True:
            began = time.monotonic()
            try:
                if kept.child is None:
                    await self._start(kept)
                    self.report(f"{name} runs again")
                reason, log = await self._end(kept)
            except ChildFailed as failure:
                reason, log = failure.reason, failure.log
            ends = 1 if time.monotonic() - began > self.backoff.stable_s else ends + 1
            pause_s = self.backoff.pause_s(ends)
            self.report(self._obituary(name, reason, log, ends, pause_s))
            await asyncio.sleep(pause_s)

    async def _end(self, kept: _Kept) -> tuple[str, str]:
        """Wait until the service ends. Why it did, and the end of its log."""
        child = kept.child
        assert child is not None
        waiting = asyncio.ensure_future(child.wait())
        try:
            while not (await asyncio.wait({waiting}, timeout=TRIM_PAUSE_S))[0]:
                child.log.trim()
        finally:
            waiting.cancel()
        child.kill()  # what the process has started must not outlive it
        kept.child = None
        self.changed()
        return f"ended ({ending(waiting.result())})", child.log.tail()

    def _obituary(self, name: str, reason: str, log: str, ends: int, pause_s: float) -> str:
        text = f"{name} {reason}; starting it again in {pause_s:g} s"
        if ends < self.backoff.show_log_after:
            return text
        return f"{text}. That was failure {ends} in a row. The end of its log:\n{log or '(it wrote nothing)'}"
