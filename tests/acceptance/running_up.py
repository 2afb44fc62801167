"""A running `chatmill up`, for tests that look at it from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from cli.leftovers import end_processes, marked_processes

CHECKOUT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-P", "-m", "cli.main", "up"]
#: A busy test machine may be many times slower than an idle one.
START_TIMEOUT_S = 60.0


def environment(**more: str) -> dict[str, str]:
    """Ours without anything that tells chatmill where to find things."""
    told = ("CHATMILL_", "OPENAI_", "REDIS_URL", "DATABASE_URL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    return {**kept, "PYTHONPATH": str(CHECKOUT), **more}


class Up:
    """A running `chatmill up --port 0`, its output read as it comes."""

    def __init__(self, data: Path, **env: str) -> None:
        self.data = data
        self.output = ""
        #: The run file as it was when everything was up.
        self.run: dict[str, Any] = {}
        self._env = environment(**env)

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *("--port", "0", "--data", str(self.data)),
            env=self._env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            process_group=0,
        )
        self._reading = asyncio.create_task(self._read())
        try:
            await until(lambda: "Stop:" in self.output or self.ended, START_TIMEOUT_S, lambda: self.output)
            assert not self.ended, self.output
            self.run = self.read_run()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.ended:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    await self._process.wait()
        if not self.ended:
            self._process.kill()
        await self._process.wait()
        end_processes(self.run_id)
        await self._reading

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    @property
    def url(self) -> str:
        return str(self.run["url"])

    @property
    def run_id(self) -> str:
        return str(self.run.get("run_id"))

    def read_run(self) -> dict[str, Any]:
        """The run file as it is now."""
        run: dict[str, Any] = json.loads((self.data / "run.json").read_text())
        return run

    def processes(self) -> set[int]:
        """Everything it has started, directly or not."""
        return marked_processes(self.run_id)

    def kill(self) -> None:
        self._process.kill()

    def signal(self, number: signal.Signals) -> None:
        """As a terminal does it: to the whole foreground group."""
        os.killpg(self._process.pid, number)

    async def wait(self) -> int:
        return await self._process.wait()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.output += line.decode()


async def until(
    condition: Callable[[], bool], timeout: float = 20.0, what: Callable[[], str] = lambda: "nothing happened"
) -> None:
    """Look again and again, since files and other programs' processes send no events."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, what()
        await asyncio.sleep(0.02)
