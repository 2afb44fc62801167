"""Serves the demo model with uvicorn: a ready line, connections that can break, and no waiting at the end."""

from __future__ import annotations

import signal
import socket

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from demo.app import DemoApp

#: As many streams as a benchmark may open at once.
_BACKLOG = 2048
#: Longer than clients keep idle connections, so that no request meets one that is being closed.
_KEEP_ALIVE_S = 120


class DemoProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with the connection's transport in the scope."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {"demo.transport": self.transport}  # type: ignore[dict-item]  # an extension of ours


class DemoServer(uvicorn.Server):
    """Prints one line when it is ready and breaks off all streams when it is told to end."""

    def __init__(self, app: DemoApp, listening: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            http=DemoProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            proxy_headers=False,
            log_level="warning",
            access_log=False,
            date_header=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        super().__init__(config)
        self._app = app
        self._listening = listening

    def serve_until_told(self) -> None:
        """Serve until SIGTERM or SIGINT; returns then."""
        # uvicorn takes over the signals only once it runs, and when it is done raises them again for whoever had them
        # before; ending on request is no failure.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        self.run(sockets=[self._listening])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(f"demo model ready at {_address(self._listening)}/v1 (canned answers, no network)", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.journal.stop()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


def inherited(descriptor: int) -> socket.socket:
    """The listening socket that the parent process passed on. Raises OSError."""
    return socket.socket(fileno=descriptor)


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
