"""A real worker, started as a process of its own as `chatmill worker`, for tests.

async with WorkerProcess(folder, settings) as worker:
    await worker.ready()
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from schemas.settings import Settings, environment_name
from tests.watchdog import watchdog

ROOT = Path(__file__).parents[1]
READY_S = 60.0
END_S = 60.0
#: What a worker takes over of the settings a test runs with; the rest is its own affair.
HANDED_ON = (
    "namespace", "redis_url", "threads", "processes", "queue", "agent_framework", "lease_s", "lease_renew_s",
    "shutdown_grace_s", "retry_delay_s", "reconcile_s", "attempt_timeout_s",
)  # fmt: skip


class WorkerProcess:
    """One worker with its processes. Its log is JSON, a line an event."""

    def __init__(self, folder: Path, settings: Settings, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._processes = settings.processes
        self._log = folder / "worker.log"
        frameworks = "\n".join(
            f'[frameworks.{name}]\nhandler = "{entry.handler}"' for name, entry in settings.frameworks.items()
        )
        (folder / "chatmill.toml").write_text(frameworks, encoding="utf-8")
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("CHATMILL_", "OPENAI_"))},
            **{environment_name(name): _plain(getattr(settings, name)) for name in HANDED_ON},
            "DATABASE_URL": settings.sqlalchemy_url,
            "CHATMILL_DATA_DIR": str(folder / "data"),
            "CHATMILL_LOG_FORMAT": "json",
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = ExitStack()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, or start it again after its end."""
        self._guard.close()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cli.main", "worker"],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._guard.enter_context(watchdog(f"kill -9 -{self._process.pid}"))

    async def ready(self, times: int = 1) -> None:
        """Wait until all its processes have said so, `times` for one that was started again."""
        await self.logged("worker ready", count=self._processes * times)

    async def logged(self, event: str, *, count: int = 1) -> list[dict[str, Any]]:
        """The log's lines with this event, as soon as there are `count` of them."""
        give_up = time.monotonic() + READY_S
        while len(found := [line for line in self.lines() if line["event"] == event]) < count:
            if time.monotonic() > give_up or self.code() is not None:
                raise AssertionError(f"the worker never said {event!r}:\n{self.log()[-5000:]}")
            await asyncio.sleep(0.02)
        return found

    def log(self) -> str:
        """Everything it has logged."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def lines(self) -> list[dict[str, Any]]:
        """The log's lines that are JSON objects; one that is being written is left out."""
        found = []
        for line in self.log().splitlines():
            with contextlib.suppress(ValueError):
                parsed = json.loads(line)
                if isinstance(parsed, dict):
                    found.append(parsed)
        return found

    def workers(self) -> list[str]:
        """The ids of its processes, as `started` events name them."""
        return [line["worker"] for line in self.lines() if line["event"] == "worker ready"]

    @property
    def pid(self) -> int:
        """The id of its master process."""
        assert self._process is not None
        return self._process.pid

    def pause(self) -> None:
        """Let all of it stand still, as a suspended machine does."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End all of it as a power cut would."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(END_S)
        self._guard.close()

    async def stop(self) -> int:
        """End it in order, with SIGTERM; returns its exit code."""
        assert self._process is not None
        self._process.terminate()
        return await self.ended()

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        assert self._process is not None
        try:
            return await asyncio.to_thread(self._process.wait, END_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker does not end:\n{self.log()[-5000:]}") from None

    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return None if self._process is None else self._process.poll()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _plain(value: Any) -> str:
    secret = getattr(value, "get_secret_value", None)
    return str(secret() if secret is not None else value)
