"""Jobs that were lost twice in company run once more, each in a process that is started for it and runs nothing else.

A job that kills its process takes its neighbours with it, and SQL cannot tell who did it. In a process of its own only
the one that did it dies again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from schemas.errors import StorageUnavailable
from schemas.settings import Settings
from storage.database import Database
from storage.jobs.claim import has_job
from storage.lanes import alone_lane
from workers.cancelling import cancel_all
from workers.main import CHECKOUT, SHUTDOWN_MARGIN_S

#: How often a worker process looks for such a job.
LOOK_S = 1.0
#: How often it looks whether the process it started has ended.
POLL_S = 0.1
#: Pause after a process that ended badly, or found nothing to do after all.
PAUSE_S = 5.0
#: For this long after one has started a process the others start none: it has to load its agents before it can claim.
STARTING_S = 15.0
#: The exit code of a process that found no job.
FOUND_NOTHING = 3

logger = structlog.get_logger(__name__)


def starting_key(namespace: str, queue: str) -> str:
    """The Redis key that says that somebody is starting a process for the queue's next such job."""
    return f"{namespace}:{queue}.alone"


class AloneRunner:
    """Watches the lane of its queue's jobs that must run alone; starts one process at a time."""

    def __init__(self, settings: Settings, database: Database, redis: Redis) -> None:
        self._settings = settings
        self._database = database
        self._redis = redis
        self._lane = alone_lane(settings.queue)
        self._starting = starting_key(settings.namespace, settings.queue)
        self._child: subprocess.Popen[bytes] | None = None
        #: Set while there is no such process.
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing_since: float | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start watching, on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="alone")

    def begin_shutdown(self) -> None:
        """Start nothing more, and tell the process that runs to end in order."""
        if self._closing_since is None:
            self._closing_since = time.monotonic()
            self._signal(signal.SIGTERM)

    async def close(self) -> None:
        """Wait for the process that runs, for as long as a shutdown may take; then end it."""
        self.begin_shutdown()
        give_up = (self._closing_since or 0.0) + self._settings.shutdown_grace_s + SHUTDOWN_MARGIN_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(give_up - time.monotonic()):
                await self._idle.wait()
        if self._child is not None:
            logger.error("the process of a job that runs alone does not end; it is killed", pid=self._child.pid)
            self._signal(signal.SIGKILL)
            await self._idle.wait()
        await cancel_all([self._task] if self._task else [])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S * random.uniform(0.8, 1.2))  # noqa: S311 - spreads processes
            try:
                if self._closing_since is None and await self._is_called():
                    await self._make_way(await self._run_child())
            except StorageUnavailable:
                continue  # the reconciler says so
            except Exception:
                logger.exception("a job that must run alone could not be started")
                await asyncio.sleep(PAUSE_S)

    async def _is_called(self) -> bool:
        """Whether there is work in the lane and nobody else is about to take it."""
        if not await self._database.read(has_job, self._lane):
            return False
        try:
            return bool(await self._redis.set(self._starting, os.getpid(), nx=True, px=round(STARTING_S * 1000)))
        except (RedisError, OSError):
            return True  # a process too many finds nothing

    async def _run_child(self) -> int:
        """Start a process and wait for its end; returns its exit code. Raises OSError."""
        self._idle.clear()
        try:
            self._child = await asyncio.to_thread(_start)
            logger.info("started a process for a job that runs alone", pid=self._child.pid)
            if self._closing_since is not None:
                self._signal(signal.SIGTERM)  # it was not there yet when the shutdown began
            while (code := self._child.poll()) is None:  # noqa: ASYNC110 - a process sets no event
                await asyncio.sleep(POLL_S)
            return code
        finally:
            self._child = None
            self._idle.set()

    async def _make_way(self, code: int) -> None:
        """Wait before the next one, if this one did not end well."""
        if code == 0 or self._closing_since is not None:
            return
        if code != FOUND_NOTHING:
            logger.error("the process of a job that runs alone ended badly", ended=_ending(code), pause_s=PAUSE_S)
            with contextlib.suppress(RedisError, OSError):
                await self._redis.delete(self._starting)  # it may not have come so far
        await asyncio.sleep(PAUSE_S)

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)


def _start() -> subprocess.Popen[bytes]:
    """Start the process, in a session of its own: Ctrl-C at a terminal reaches its worker, which passes it on.

    Raises OSError.
    """
    # The working directory may hold namesakes of ours, so it is kept out of the path and the checkout comes first.
    path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(  # noqa: S603 - this program itself
        [sys.executable, "-P", "-m", "workers.alone_child", str(os.getpid())],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _ending(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
