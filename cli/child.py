"""One process started by chatmill, and everything that process starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

from schemas.errors import ChatmillError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from cli.log_file import LogFile

#: Pause between two looks at whether a process serves already.
PROBE_PAUSE_S = 0.02


class ChildFailed(ChatmillError):
    """A process ended before it was ready, or did not get ready in time.

    `reason` is a predicate ("ended (exit code 1)"), `log` the end of what the process wrote.
    """

    def __init__(self, reason: str, log: LogFile) -> None:
        super().__init__(f"{log.path.stem} {reason}")
        self.reason = reason
        self.log = log.tail()
        self.log_path = log.path


class Child:
    """A process in a session of its own, so that the terminal's Ctrl-C reaches only whoever started it."""

    def __init__(self, process: asyncio.subprocess.Process, log: LogFile) -> None:
        self._process = process
        self.log = log
        self._group_ended = False

    @classmethod
    async def start(cls, argv: Sequence[str | Path], log: LogFile, *, env: Mapping[str, str] | None = None) -> Child:
        """Start `argv` with its output in `log`. Raises ChildFailed if it cannot be executed."""
        try:
            output = log.open()
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=env,
                    start_new_session=True,
                )
            finally:
                os.close(output)
        except OSError as error:
            raise ChildFailed(f"cannot be started: {error}", log) from error
        return cls(process, log)

    @property
    def pid(self) -> int:
        """Also the number of its process group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def wait(self) -> int:
        """Its exit code, or minus the number of the signal that ended it."""
        return await self._process.wait()

    async def ready(self, probe: Callable[[], Awaitable[bool]], timeout: float) -> None:
        """Return once `probe` says yes.

        Raises ChildFailed if the process ends before that or `timeout` seconds pass; then nothing of it is left.
        """
        try:
            async with asyncio.timeout(timeout):
                while self.running:
                    if await probe():
                        break
                    await asyncio.sleep(PROBE_PAUSE_S)
        except TimeoutError:
            await self.end()
            raise ChildFailed(f"was not ready after {timeout:g} seconds", self.log) from None
        except BaseException:
            await self.end()
            raise
        # Also after a yes: the answer may have come from somebody else's program that holds the same port.
        if not self.running:
            raise ChildFailed(f"ended ({ending(await self.end())})", self.log)

    async def stop(self, grace_s: float) -> None:
        """Ask it to end, and after `grace_s` seconds end it and everything in its group."""
        if self.running:
            # To the process alone: it passes the request on to its own children, who must not get it twice.
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self.wait()
        await self.end()

    async def end(self) -> int:
        """End the process and what is left of its group. Its exit code, as `wait()` says it."""
        self.kill()
        return await self.wait()

    def kill(self) -> None:
        """End the process and what is left of its group, without waiting for that."""
        if self._group_ended:  # its number may be somebody else's by now
            return
        self._group_ended = not self.running
        # PermissionError is what macOS says of a group in which only zombies are left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def ending(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
