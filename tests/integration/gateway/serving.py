"""Serves a gateway inside a test, on a real socket of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from gateway.app import Gateway, create_app
from gateway.server import GatewayServer, listen
from schemas.settings import Settings


@dataclass(frozen=True)
class Serving:
    """A gateway that serves at `url`."""

    url: str
    app: Gateway
    server: GatewayServer

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    async def followed_by(self, clients: int) -> None:
        """Wait until so many clients follow a job."""
        assert self.app.services is not None
        async with asyncio.timeout(10):
            while self.app.services.hub.following != clients:  # noqa: ASYNC110 - the hub has no event for this
                await asyncio.sleep(0.002)


class _Server(GatewayServer):
    """Leaves the signals of the test's process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serve(settings: Settings) -> AsyncIterator[Serving]:
    """A gateway for the time of the context."""
    app = create_app(settings)
    listening = listen("127.0.0.1", 0)
    server = _Server(app, listening)
    url = server.url
    task = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:
        assert not task.done(), "the gateway did not start"
        await asyncio.sleep(0.005)
    try:
        yield Serving(url, app, server)
    finally:
        server.should_exit = True
        await task
