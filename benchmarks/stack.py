"""Everything a benchmark runs against, as real processes on loopback: Valkey, the demo model, a worker, the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cli.ports import free_port
from cli.valkey import Valkey

ROOT = Path(__file__).parent.parent
START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 20.0


async def _nobody() -> psutil.Process:
    raise RuntimeError("the stack does not run")


@dataclass(slots=True)
class Stack:
    """The running processes, by name, and where they listen."""

    gateway_url: str
    model_url: str
    #: Roots of process trees: `worker`, `gateway`, `valkey`, `model`.
    processes: dict[str, psutil.Process] = field(default_factory=dict)
    #: Starts one more worker beside the first.
    start_worker: Callable[[], Awaitable[psutil.Process]] = field(default=_nobody)

    def cpu_s(self, names: Iterable[str]) -> float:
        """CPU seconds the named process trees have used so far."""
        return sum(_cpu_s(process) for name in names for process in _tree(self.processes[name]))

    def memory_bytes(self, name: str) -> int:
        """Resident memory of a process tree."""
        return sum(process.memory_info().rss for process in _tree(self.processes[name]))


@contextlib.asynccontextmanager
async def running_stack() -> AsyncIterator[Stack]:
    """Start all of it in a temporary folder, and end it."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chatmill-bench-")))
        valkey = Valkey(folder / "valkey")
        server = await valkey.start()
        stack.push_async_callback(valkey.stop)
        model, model_address = await _start(stack, folder, "model", {}, "-m", "demo", "--port", "0")
        environment = {
            "REDIS_URL": valkey.url,
            "DATABASE_URL": f"sqlite:///{folder / 'chatmill.db'}",
            "CHATMILL_DATA_DIR": str(folder),
            "CHATMILL_NAMESPACE": f"bench{secrets.token_hex(3)}",
            "CHATMILL_DEMO_URL": f"{model_address}/v1",
            "CHATMILL_MODEL": "demo",
            "CHATMILL_LOG_LEVEL": "warning",
            "OPENAI_API_KEY": "",
            "OPENAI_BASE_URL": "",
        }
        await _run(environment, "-m", "cli.main", "migrate")
        worker = await _spawn(stack, folder, "worker", environment, "-m", "cli.main", "worker")
        port = free_port()
        gateway = await _spawn(stack, folder, "gateway", environment, "-m", "cli.main", "gateway", "--port", str(port))
        address = f"http://127.0.0.1:{port}"
        await _listening(port)
        running = Stack(address, f"{model_address}/v1")

        async def start_worker() -> psutil.Process:
            name = f"worker{secrets.token_hex(3)}"
            another = await _spawn(stack, folder, name, environment, "-m", "cli.main", "worker")
            return psutil.Process(another.pid)

        running.start_worker = start_worker
        running.processes = {
            "valkey": psutil.Process(server.pid),
            "model": psutil.Process(model.pid),
            "worker": psutil.Process(worker.pid),
            "gateway": psutil.Process(gateway.pid),
        }
        yield running


async def _start(
    stack: contextlib.AsyncExitStack, folder: Path, name: str, environment: dict[str, str], *arguments: str
) -> tuple[asyncio.subprocess.Process, str]:
    """Start a process that prints its address once it listens; returns both."""
    process = await _spawn(stack, folder, name, environment, *arguments)
    log = folder / f"{name}.log"
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text(encoding="utf-8"))
            if found is not None:
                return process, found.group()
            if process.returncode is not None:
                raise RuntimeError(f"{name} ended: {log.read_text(encoding='utf-8')[-2000:]}")
            await asyncio.sleep(0.05)


async def _listening(port: int) -> None:
    """Wait until somebody listens on the port."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


async def _spawn(
    stack: contextlib.AsyncExitStack, folder: Path, name: str, environment: dict[str, str], *arguments: str
) -> asyncio.subprocess.Process:
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    stack.push_async_callback(_end, process)
    return process


async def _run(environment: dict[str, str], *arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, env={**os.environ, **environment}, stdout=asyncio.subprocess.DEVNULL
    )
    if await process.wait() != 0:
        raise RuntimeError(f"{' '.join(arguments)} failed")


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), END_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def _tree(root: psutil.Process) -> list[psutil.Process]:
    return [root, *root.children(recursive=True)]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
