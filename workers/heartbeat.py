"""A worker process says every few seconds how it is: in Redis, for operators, and in a file, for a health check.

A thread of its own says it: the loop may be the one that is not well.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

from schemas.heartbeat import HEARTBEAT_EVERY_S, WorkerHeartbeat
from schemas.job_event import rfc3339
from schemas.settings import Settings
from schemas.version import version
from storage.clock import to_us
from storage.heartbeats import Heartbeats
from storage.redis_client import open_redis
from workers.desk import Desk
from workers.heartbeat_file import HeartbeatFile
from workers.loop_watch import LoopWatch

#: Redis gets this long; the file must not wait for it any longer.
REDIS_TIMEOUT_S = 1.0

logger = structlog.get_logger(__name__)


class HeartbeatThread:
    """Writes the heartbeats of one worker process.

    `polled_at` tells when its consumer last reached Redis, by `time.monotonic()`; None: never.
    """

    def __init__(self, settings: Settings, desk: Desk, watch: LoopWatch, polled_at: Callable[[], float | None]) -> None:
        self._settings = settings
        self._desk = desk
        self._watch = watch
        self._polled_at = polled_at
        self._started_at = _now()
        self._file = HeartbeatFile(settings.data_dir)
        self._file_failed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Say that the process is there, and go on saying so."""
        self._write_file(self._heartbeat())
        self._thread.start()

    async def close(self) -> None:
        """Take both signs away: the process ends in order."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        asyncio.run(self._beat_for_ever())

    async def _beat_for_ever(self) -> None:
        redis = open_redis(self._settings.redis_url.get_secret_value())
        heartbeats = Heartbeats(redis, self._settings.namespace)
        try:
            while not self._stop.is_set():
                heartbeat = self._heartbeat()
                self._write_file(heartbeat)
                try:
                    async with asyncio.timeout(REDIS_TIMEOUT_S):
                        await heartbeats.write(heartbeat)
                except (RedisError, OSError) as error:
                    # The reconciler and the consumer have said so at a louder level.
                    logger.debug("no heartbeat in Redis", error=type(error).__name__)
                except Exception:
                    logger.exception("no heartbeat in Redis")
                await asyncio.to_thread(self._stop.wait, HEARTBEAT_EVERY_S)
            await self._take_away(heartbeats)
        finally:
            await redis.aclose()

    async def _take_away(self, heartbeats: Heartbeats) -> None:
        try:
            self._file.remove()
            async with asyncio.timeout(REDIS_TIMEOUT_S):
                await heartbeats.remove(self._desk.worker_id)
        except (RedisError, OSError) as error:
            logger.debug("a heartbeat stays until it is stale", error=type(error).__name__)

    def _write_file(self, heartbeat: WorkerHeartbeat) -> None:
        try:
            self._file.write(heartbeat)
            self._file_failed = False
        except OSError as error:
            if not self._file_failed:  # once: it is tried again every few seconds
                logger.warning("the heartbeat file cannot be written: health checks will fail", error=str(error))
            self._file_failed = True

    def _heartbeat(self) -> WorkerHeartbeat:
        polled_at = self._polled_at()
        return WorkerHeartbeat(
            worker=self._desk.worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queue=self._settings.queue,
            running=len(self._desk.held()),
            threads=self._settings.threads,
            version=version(),
            started_at=self._started_at,
            at=_now(),
            polled_s_ago=None if polled_at is None else round(max(0.0, time.monotonic() - polled_at), 1),
            loop_lag_s=round(self._watch.lag_s, 2),
            closing=self._desk.closing,
        )


def _now() -> str:
    """This machine's time: the file's reader has the same clock, and Redis's own replaces it there."""
    return rfc3339(to_us(time.time()))
