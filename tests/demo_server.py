"""The demo model as a process of its own, for tests: on a free port, ended by its pid.

with demo_server() as demo:                  # in a fixture of any scope
    OpenAI(base_url=demo.base_url, api_key="any")

async with demo_process() as demo: ...       # inside an asynchronous test
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_READY_S = 30.0
_END_S = 10.0


@dataclass(frozen=True)
class DemoServer:
    """A running demo model. `base_url` ends in `/v1`; `pid` is its process."""

    base_url: str
    pid: int

    @property
    def root_url(self) -> str:
        """The address without `/v1`."""
        return self.base_url.removesuffix("/v1")

    def requests(self, *, containing: str = "", state: str = "", limit: int = 50) -> list[dict[str, Any]]:
        """The last requests, newest last: `id`, `at`, `authorization`, `state`, `status`, `body`.

        `containing` is a text of the raw body, so that tests which share a server see only their own requests;
        `state` is `open`, `done`, `gone` (the client left first) or `broken` (the server broke off).
        """
        return self._find(containing=containing, state=state, limit=limit)

    def wait_for_requests(self, count: int = 1, *, containing: str = "", state: str = "") -> list[dict[str, Any]]:
        """The requests that match, as soon as there are `count` of them; fails after 10 s. Blocks: see `awaited`."""
        found = self._find(containing=containing, state=state, count=count, wait=10)
        assert len(found) >= count, f"the demo model saw {len(found)} of {count} requests; {self.stats()}"
        return found

    async def awaited(self, count: int = 1, *, containing: str = "", state: str = "") -> list[dict[str, Any]]:
        """`wait_for_requests` for asynchronous tests."""
        return await asyncio.to_thread(self.wait_for_requests, count, containing=containing, state=state)

    def stats(self) -> dict[str, int]:
        """Counters since the start: `requests`, `open`, `done`, `gone`, `broken`."""
        stats: dict[str, int] = self._get("/_demo/stats")
        return stats

    def _find(self, **query: str | int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get(f"/_demo/requests?{urllib.parse.urlencode(query)}")["requests"]
        return found

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self.root_url + path, timeout=30) as response:
            return json.load(response)


@contextlib.contextmanager
def demo_server(*arguments: str) -> Iterator[DemoServer]:
    """Start `python -m demo` with these arguments on a free port; end it afterwards. It makes no pauses by default."""
    process = _start("--port", "0", "--pace", "0", *arguments)
    try:
        yield DemoServer(_read_address(process), process.pid)
    finally:
        _end(process)


@contextlib.asynccontextmanager
async def demo_process(*arguments: str) -> AsyncIterator[DemoServer]:
    """`demo_server` for asynchronous code: starting and ending do not block the loop."""
    with contextlib.ExitStack() as stack:
        demo = await asyncio.to_thread(stack.enter_context, demo_server(*arguments))
        try:
            yield demo
        finally:
            await asyncio.to_thread(stack.close)


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    command = [sys.executable, "-m", "demo", *arguments]
    return subprocess.Popen(command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE)


def _read_address(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(_READY_S):
            raise TimeoutError(f"the demo model was not ready in {_READY_S} s")
    line = process.stdout.readline().decode()
    if not line:
        raise RuntimeError(f"the demo model ended with exit code {process.wait()}")
    return next(word for word in line.split() if word.startswith("http://"))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        assert process.stdout is not None
        process.stdout.close()
