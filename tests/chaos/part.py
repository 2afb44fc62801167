"""One process of the stage: started, watched by its log, frozen, and ended in all the ways there are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import psutil

from tests.watchdog import watchdog

#: A machine with two busy cores is slow.
READY_S = 90.0
END_S = 60.0
PAUSE_S = 0.02


class PartFailed(AssertionError):
    """A process did not do what it was started for, or did not end when it was told to."""


class Part:
    """A process in a session of its own; its log comes through a pipe, so that a full disk does not silence it."""

    def __init__(
        self, name: str, folder: Path, command: Sequence[str], environment: dict[str, str], ready: Callable[[str], bool]
    ) -> None:
        self.name = name
        self._folder = folder
        self._command = list(command)
        self._environment = environment
        self._is_ready = ready
        self._log = folder / f"{name}.log"
        self._guard = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None
        #: Lines of the log that are JSON objects, over all starts.
        self.events: list[dict[str, Any]] = []
        self._ready = 0
        self._wanted = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def serves(self) -> bool:
        """Whether it has said that it is ready, since its last start."""
        return self.running and self._ready >= self._wanted

    def start(self, ready: int = 1) -> None:
        """Start it; `ready` lines of its log will say that it serves."""
        self._guard.close()
        process = self._process = subprocess.Popen(
            self._command,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._guard.enter_context(watchdog(f"kill -9 -{process.pid}"))
        self._ready, self._wanted = 0, ready
        assert process.stdout is not None
        self._pump = threading.Thread(target=self._read_log, args=(process.stdout,), daemon=True)
        self._pump.start()

    async def ready(self) -> None:
        """Wait until it serves. Raises PartFailed."""
        give_up = time.monotonic() + READY_S
        while self._ready < self._wanted:
            if not self.running or time.monotonic() > give_up:
                raise PartFailed(f"{self.name} never got ready:\n{self.tail()}")
            await asyncio.sleep(PAUSE_S)

    def pids(self) -> list[int]:
        """The processes of its group that are there, its first one before all others."""
        if not self.running:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return [self.pid, *(child.pid for child in psutil.Process(self.pid).children(recursive=True))]
        return []

    def freeze(self) -> None:
        """Let all of it stand still, as a suspended machine does."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def limit_files(self, size: int) -> None:
        """Let no file grow beyond `size` bytes by its hand, as on a full disk; -1 takes the limit away."""
        limit = resource.RLIM_INFINITY if size < 0 else size
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    async def kill(self) -> None:
        """End all of it as a power cut would."""
        self._signal(signal.SIGKILL)
        await self._ended()

    async def stop(self) -> int:
        """Ask it to end; returns its exit code. Raises PartFailed if it does not, and ends it."""
        assert self._process is not None
        self._process.terminate()
        return await self.ended()

    async def ended(self) -> int:
        """Its exit code, once it has ended. Raises PartFailed if it does not, and ends it."""
        try:
            return await self._ended()
        except subprocess.TimeoutExpired:
            said = self.tail()
            await self.kill()
            raise PartFailed(f"{self.name} did not end within {END_S:g} s:\n{said}") from None

    def tail(self) -> str:
        """The end of its log."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-3000:] if self._log.exists() else ""

    async def _ended(self) -> int:
        assert self._process is not None
        code = await asyncio.to_thread(self._process.wait, END_S)
        # What it leaves behind, if anything: a killed worker's children.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._guard.close()
        if self._pump is not None:
            await asyncio.to_thread(self._pump.join, END_S)
        return code

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _read_log(self, pipe: IO[bytes]) -> None:
        with self._log.open("ab", buffering=0) as file, pipe:
            for line in pipe:
                file.write(line)
                text = line.decode("utf-8", errors="replace")
                self._ready += self._is_ready(text)
                with contextlib.suppress(ValueError):
                    event = json.loads(text)
                    if isinstance(event, dict):
                        self.events.append(event)
