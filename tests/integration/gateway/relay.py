"""A way to a Redis that can go dead without a word, as when a firewall has forgotten a connection."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class Relay:
    """Passes on what clients and the server at `server_port` say to each other."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._writers: list[asyncio.StreamWriter] = []
        #: Where subscribers are answered.
        self._subscribers: set[asyncio.StreamWriter] = set()
        self._swallowing: set[asyncio.StreamWriter] = set()
        self._listener: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    def swallow(self) -> None:
        """From now on tell the subscribers there are nothing more; new connections work."""
        assert self._subscribers
        self._swallowing |= self._subscribers

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        for writer in self._writers:
            writer.close()

    async def _connect(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._writers += [to_client, to_server]
        with contextlib.suppress(OSError):
            await asyncio.gather(
                self._pass_on(from_client, to_server, to_client), self._pass_on(from_server, to_client, to_server)
            )

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(65536):
            if b"\r\nSUBSCRIBE\r\n" in data:
                self._subscribers.add(back)
            if writer not in self._swallowing:
                writer.write(data)
        writer.close()
