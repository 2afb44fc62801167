"""Leases are renewed by a thread with its own loop and its own connection.

A handler that blocks the event loop must not lose its neighbours their jobs; only a loop that has been blocked for a
minute is given up.
"""

from __future__ import annotations

import asyncio
import threading
import time

import structlog

from schemas.errors import StorageUnavailable
from schemas.settings import Settings
from storage.clock import to_us
from storage.database import open_database
from storage.jobs.lease import Renewal, renew
from workers.attempt import StopReason
from workers.desk import Desk
from workers.loop_watch import LoopWatch
from workers.metrics import Metrics

#: A loop that has not moved for this long is not coming back: others may have its jobs.
LOOP_BLOCKED_S = 60.0
#: A renewal that took longer is followed by another at once.
SLOW_RENEWAL_S = 1.0
#: Pause after a renewal that did not reach SQL.
RETRY_S = 1.0

logger = structlog.get_logger(__name__)


class LeaseThread:
    """Renews the leases of a desk's attempts; tells the desk of lost ones and of cancellations."""

    def __init__(self, settings: Settings, desk: Desk, watch: LoopWatch, metrics: Metrics | None = None) -> None:
        self._metrics = metrics or Metrics()
        self._settings = settings
        self._desk = desk
        self._watch = watch
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def close(self) -> None:
        """Stop renewing; call it when every attempt is settled."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        asyncio.run(self._renew_for_ever())

    async def _renew_for_ever(self) -> None:
        database = open_database(self._settings.sqlalchemy_url)
        try:
            pause = self._settings.lease_renew_s
            while not await asyncio.to_thread(self._stop.wait, pause):
                pause = self._settings.lease_renew_s
                blocked_s = self._watch.lag_s
                if blocked_s > LOOP_BLOCKED_S:
                    logger.error("the event loop is blocked; leases are no longer renewed", blocked_s=round(blocked_s))
                    continue
                held = self._desk.held()
                if not held:
                    continue
                began = time.monotonic()
                try:
                    renewal = await database.write(renew, held, to_us(self._settings.lease_s))
                except StorageUnavailable as error:
                    self._metrics.lease_renewal_failures.inc()
                    logger.warning("leases not renewed: SQL does not answer", error=str(error))
                    pause = RETRY_S
                    continue
                except Exception:
                    self._metrics.lease_renewal_failures.inc()
                    # Without this thread every job of the process would expire.
                    logger.exception("leases not renewed")
                    pause = RETRY_S
                    continue
                self._metrics.lease_renewals.inc()
                if time.monotonic() - began > SLOW_RENEWAL_S:
                    pause = 0.0  # the leases run from when the statement began, which is a while ago
                self._loop.call_soon_threadsafe(self._tell, renewal)
        finally:
            await database.close()

    def _tell(self, renewal: Renewal) -> None:
        for held in renewal.lost:
            self._desk.stop(held, StopReason.LOST)
        for held, reason in renewal.cancelled.items():
            self._desk.stop(held, StopReason.CANCEL, reason)
