"""A service that is one command of ours: the gateway, a worker, the demo model."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cli.child import Child
from cli.ports import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from cli.log_file import LogFile

#: Importing everything takes seconds on a slow or busy machine.
READY_TIMEOUT_S = 60.0


async def at_once(_: LogFile) -> bool:
    """The probe of a program that nobody has to wait for."""
    return True


@dataclass
class Program:
    """A command that is ready when `probe`, given its log, says so."""

    name: str
    argv: Sequence[str]
    log: LogFile
    env: Mapping[str, str]
    grace_s: float
    probe: Callable[[LogFile], Awaitable[bool]] = at_once

    async def start(self) -> Child:
        """Start it and wait until it is ready. Raises ChildFailed."""
        child = await Child.start(self.argv, self.log, env=self.env)
        await child.ready(lambda: self.probe(self.log), READY_TIMEOUT_S)
        return child


@dataclass
class DemoModel(Program):
    """The demo model server: takes a free port at its first start and keeps it."""

    port: int = 0

    @property
    def url(self) -> str:
        """Its address as an OpenAI base URL."""
        return f"http://{LOOPBACK}:{self.port}/v1"

    async def start(self) -> Child:
        command = [*self.argv, "--host", LOOPBACK, "--port", str(self.port)]
        child = await Child.start(command, self.log, env=self.env)
        await child.ready(self._said_its_port, READY_TIMEOUT_S)
        return child

    async def _said_its_port(self) -> bool:
        line = re.search(rf"http://{re.escape(LOOPBACK)}:(\d+)\b.*\n", self.log.text())
        if line is not None:
            self.port = int(line[1])
        return line is not None


async def answers_http(port: int, path: str) -> bool:
    """Whether GET `path` on `port` is answered with 200."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nhost: {LOOPBACK}:{port}\r\nconnection: close\r\n\r\n".encode())
                return re.match(rb"HTTP/1\.\d 200\b", await reader.readline()) is not None
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except OSError:  # TimeoutError is one
        return False
