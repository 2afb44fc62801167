"""A client of the gateway, as close to the wire as a test needs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import httpx2

from cli.sse import SseParser
from schemas.fold import Fold
from schemas.job_event import EventId

#: Longer than anything a test waits for.
TIMEOUT_S = 20.0

Frame = tuple[EventId, dict[str, Any]]


class EventReader:
    """The frames of one event stream, checked as they come: the event's name is its kind, and ids only grow."""

    def __init__(self, response: httpx2.Response) -> None:
        self.response = response
        self.fold = Fold()
        #: Everything as it came.
        self.raw = bytearray()
        self._pieces = response.aiter_bytes()
        self._parser = SseParser()
        self._frames: list[Frame] = []

    async def next(self) -> Frame | None:
        """The next event; None at the end of the stream."""
        # Over all pieces: heartbeats are no progress.
        async with asyncio.timeout(TIMEOUT_S):
            while not self._frames:
                try:
                    piece = await anext(self._pieces)
                except StopAsyncIteration:
                    return None
                self._take(piece)
        event_id, event = self._frames.pop(0)
        assert self.fold.apply(event_id, event), f"{event_id} came twice, or too late"
        return event_id, event

    def _take(self, piece: bytes) -> None:
        self.raw += piece
        for frame in self._parser.feed(piece):
            event = json.loads(frame.data)
            assert frame.event == event["kind"]
            self._frames.append((EventId.parse(frame.id), event))

    async def until(self, kind: str) -> dict[str, Any]:
        """Read up to the next event of a kind."""
        while (frame := await self.next()) is not None:
            if frame[1]["kind"] == kind:
                return frame[1]
        raise AssertionError(f"the stream ended before {kind}")

    async def rest(self) -> list[Frame]:
        """Everything up to the end of the stream."""
        frames = []
        while (frame := await self.next()) is not None:
            frames.append(frame)
        return frames


class GatewayClient:
    """Requests to one gateway; paths are below its address."""

    def __init__(self, url: str) -> None:
        self.http = httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.aclose()

    async def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        return await self.http.post(path, json=body, **options)

    async def create_job(self, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Have a job accepted; what it is."""
        response = await self.post("/v1/jobs", body or {"message": "hello"})
        assert response.status_code == 202, response.text
        job: dict[str, Any] = response.json()
        return job

    async def get(self, path: str, **options: Any) -> dict[str, Any]:
        """The JSON at a path, which must be there."""
        response = await self.http.get(path, **options)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    @asynccontextmanager
    async def stream(self, method: str, path: str, **options: Any) -> AsyncIterator[EventReader]:
        """An open event stream."""
        async with self.http.stream(method, path, **options) as response:
            if response.status_code != 200:
                await response.aread()
            assert response.status_code == 200, response.text
            assert response.headers["content-type"] == "text/event-stream"
            yield EventReader(response)

    @asynccontextmanager
    async def follow(self, job_id: str, after: EventId | str | None = None) -> AsyncIterator[EventReader]:
        """The events of a job behind a cursor."""
        headers = {} if after is None else {"last-event-id": str(after)}
        async with self.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as reader:
            yield reader
