"""Serves the gateway with uvicorn: on loopback only, with a clear word when it cannot start and a quick end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys

import structlog
import uvicorn

from gateway.app import Gateway, create_app
from gateway.guard import is_loopback
from schemas.errors import ConfigurationError
from schemas.garbage import settle_in
from schemas.logs import configure_logging
from schemas.settings import Settings

#: As many clients as may connect at one moment.
BACKLOG = 2048
#: Longer than clients keep idle connections, so that no request meets one that is being closed.
KEEP_ALIVE_S = 75
#: Streams end at once when the gateway is told to; whatever else is open after this is cut: it reads nothing.
CUT_AFTER_S = 0.4
#: For what not even cutting ends.
GRACE_S = 2

logger = structlog.get_logger(__name__)


def run_gateway(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. What keeps it from starting is told in one line."""
    configure_logging(settings.log_level, settings.log_format)
    try:
        listening = listen(settings.host, settings.port)
        # uvicorn raises the signal again when it is done; ending on request is no failure.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        GatewayServer(create_app(settings), listening).run(sockets=[listening])
    except (ConfigurationError, OSError) as error:
        print(f"chatmill: {error}", file=sys.stderr)
        return 1
    return 0


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on a loopback address; port 0 picks a free one.

    Raises ConfigurationError that says what is wrong and what to do.
    """
    if not is_loopback(host):
        raise ConfigurationError(
            f"the gateway does not listen on {host}: it asks nobody for a key yet, so anybody who reaches it could use "
            "it. Set CHATMILL_HOST to 127.0.0.1 or ::1"
        )
    address = "127.0.0.1" if host.lower().rstrip(".").endswith("localhost") else host
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listening = socket.create_server((address, port), family=family, backlog=BACKLOG)
    except OSError as error:
        remedy = {
            errno.EADDRINUSE: "stop the program that holds it, or set CHATMILL_PORT to another one",
            errno.EACCES: "ports below 1024 need privileges: set CHATMILL_PORT to a higher one",
        }.get(error.errno or 0, "set CHATMILL_HOST and CHATMILL_PORT to an address of this machine")
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigurationError(f"cannot listen on {host} port {port} ({reason}): {remedy}") from None
    # Every connection inherits it. asyncio's own loop does not set it on sockets made elsewhere, and each answer that
    # is written in two pieces would wait 40 ms for the client's acknowledgement of the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


class GatewayServer(uvicorn.Server):
    """Says where it listens, and ends all streams when it is told to end."""

    def __init__(self, app: Gateway, listening: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http="httptools",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._app = app
        self._listening = listening

    @property
    def url(self) -> str:
        """Where it listens."""
        host, port = self._listening.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        # Opened here and not by uvicorn's lifespan, whose errors would take several lines.
        async with self._app:
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        settle_in()
        logger.info("the gateway listens", url=self.url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logger.info("the gateway stops")
        self._app.stop()
        asyncio.get_running_loop().call_later(CUT_AFTER_S, self._cut_connections)
        await super().shutdown(sockets)

    def _cut_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
