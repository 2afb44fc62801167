"""Clients that follow a job, leave, and come back at some id they have seen, at whatever gateway is up."""

from __future__ import annotations

import asyncio
import random

import httpx2

from schemas.job_event import TERMINAL_KINDS
from tests.chaos.evidence import Client, Sitting
from tests.chaos.frames import frames
from tests.chaos.stage import Stage

#: Heartbeats come every 2 s: a stream that is silent for longer than this is dead.
SILENCE_S = 15.0
#: Between two tries.
PAUSE_S = (0.02, 0.4)


def http_client() -> httpx2.AsyncClient:
    """What producers and followers of a run share."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=50)
    timeout = httpx2.Timeout(SILENCE_S, connect=5.0)
    return httpx2.AsyncClient(timeout=timeout, limits=limits, trust_env=False)


class Follower:
    """Records every byte; whatever it decides comes from its own seed."""

    def __init__(self, stage: Stage, http: httpx2.AsyncClient, client: Client, seed: str) -> None:
        self._stage = stage
        self._http = http
        self._rng = random.Random(seed)
        self.client = client
        self._seen: list[str] = []
        self._ended = False

    async def follow(self) -> None:
        """Come back until the end is seen; some ask once more behind it, and must be told that there is nothing."""
        while not self._ended:
            await self._sit(self._cursor())
            await asyncio.sleep(self._rng.uniform(*PAUSE_S))
        while not self.client.done and self._rng.random() < 0.3:
            await self._sit(self._seen[-1] if self._seen else None)
        self.client.done = True

    async def read(self, sitting: Sitting, response: httpx2.Response, leave_after: int | None) -> None:
        """Record a stream until it ends, breaks, or `leave_after` events have come."""
        sitting.status = response.status_code
        if response.status_code != 200:
            sitting.body = await response.aread()
            return
        count = 0
        async for piece in response.aiter_bytes():
            sitting.body += piece
            found = frames(sitting.body)
            for frame in found[count:]:
                self._seen.append(str(frame.id))
                self._ended |= frame.name in TERMINAL_KINDS
            count = len(found)
            if leave_after is not None and count >= leave_after and not self._ended:
                return

    def leaves_after(self) -> int | None:
        """How many events it stays for; None is until the end."""
        return self._rng.choice((None, None, 1, 2, 3, 5, 8, 13))

    async def _sit(self, cursor: str | None) -> None:
        sitting = Sitting(cursor)
        self.client.sittings.append(sitting)
        url = f"{self._stage.any_gateway(self._rng)}/v1/jobs/{self.client.job_id}/events"
        headers = {} if cursor is None else {"Last-Event-ID": cursor}
        try:
            async with self._http.stream("GET", url, headers=headers) as response:
                await self.read(sitting, response, self.leaves_after())
        except httpx2.HTTPError:
            return
        if sitting.status == 204:
            self._ended = self.client.done = True

    def _cursor(self) -> str | None:
        """Mostly where it left; sometimes it starts anew, or further back than it has been."""
        if not self._seen or self._rng.random() < 0.1:
            return None
        return self._seen[-1] if self._rng.random() < 0.8 else self._rng.choice(self._seen)
