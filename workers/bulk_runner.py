"""Works bulk runs off, item after item, in whichever process holds their lease.

Every gateway and worker process has one. A process that dies leaves its runs to the others, who go on from the cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from functools import partial

import structlog
from redis.exceptions import RedisError

from schemas.errors import StorageUnavailable
from schemas.settings import Settings
from storage import bulk_runs
from storage.bulk_runs import Held, LeaseLost, Step
from storage.database import Database
from storage.event_log import EventLog
from workers.cancelling import cancel_all
from workers.control import send_cancel
from workers.producer import Producer

#: How often a process looks for runs that nobody works on.
LOOK_S = 1.0
#: Runs one process works on side by side: a slow one must not hold up the others.
MOST_RUNS = 8
#: Items read in one go.
PAGE = 100
#: A run that waits for its rate renews its lease, and sees that it was aborted, this often.
RENEW_S = 0.5
TELL_TIMEOUT_S = 1.0

logger = structlog.get_logger(__name__)


class BulkRunner:
    """Runs for as long as its process lives; `wake` spares a new run the time until the next look."""

    def __init__(self, settings: Settings, database: Database, log: EventLog, producer: Producer) -> None:
        self._settings = settings
        self._database = database
        self._log = log
        self._producer = producer
        self._woken = asyncio.Event()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def wake(self) -> None:
        """There is a new run."""
        self._woken.set()

    async def run(self) -> None:
        """Take up runs until cancelled."""
        try:
            while True:
                try:
                    await self._take_up()
                except StorageUnavailable as error:
                    logger.debug("bulk runs wait: SQL does not answer", error=str(error))
                except Exception:
                    logger.exception("looking for bulk runs failed")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._woken.wait()
                self._woken.clear()
        finally:
            await cancel_all(list(self._tasks.values()))

    async def _take_up(self) -> None:
        for run in await self._database.read(bulk_runs.unheld, MOST_RUNS):
            if run.id in self._tasks or len(self._tasks) >= MOST_RUNS:
                continue
            try:
                lease_until = await self._database.write(bulk_runs.hold, run)
            except LeaseLost:
                continue  # another process was first
            task = asyncio.create_task(self._work(replace(run, lease_until=lease_until)), name=f"bulk-run {run.id}")
            self._tasks[run.id] = task
            task.add_done_callback(partial(self._let_go, run.id))

    def _let_go(self, run_id: str, _: asyncio.Task[None]) -> None:
        del self._tasks[run_id]

    async def _work(self, run: Held) -> None:
        logger.info("works on a bulk run", run=run.id, action=run.action, behind=run.cursor)
        try:
            await self._work_off(run)
        except LeaseLost:
            logger.info("a bulk run was aborted, or another process has it", run=run.id)
        except StorageUnavailable as error:
            # It is taken up again when its lease has run out, by this process or another.
            logger.warning("a bulk run waits: SQL does not answer", run=run.id, error=str(error))
        except Exception:
            logger.exception("a bulk run stopped; it is taken up again", run=run.id)

    async def _work_off(self, run: Held) -> None:
        due = time.monotonic()
        while items := await self._database.read(bulk_runs.next_items, run, PAGE):
            for item in items:
                run = await self._renew_until(due, run)
                run = await self._deal_with(run, item)
                if run.rate is not None:
                    due = max(due + 1 / run.rate, time.monotonic())  # what was missed is not made up for
        await self._database.write(bulk_runs.finish, run)
        logger.info("a bulk run is finished", run=run.id)

    async def _renew_until(self, due: float, run: Held) -> Held:
        while (pause := due - time.monotonic()) > 0:
            await asyncio.sleep(min(pause, RENEW_S))
            if pause > RENEW_S:
                run = replace(run, lease_until=await self._database.write(bulk_runs.hold, run))
        return run

    async def _deal_with(self, run: Held, item: str) -> Held:
        try:
            step = await self._database.write(bulk_runs.step, run, item)
        except (LeaseLost, StorageUnavailable):
            raise
        except Exception:
            logger.exception("an item of a bulk run cannot be dealt with", run=run.id, item=item)
            step = Step(False, await self._database.write(bulk_runs.skip, run, item))
        await self._tell(run, step)
        return replace(run, cursor=item, lease_until=step.lease_until)

    async def _tell(self, run: Held, step: Step) -> None:
        """What SQL says by now; the reconciler and the leases do what Redis did not take."""
        if step.recorded is not None:
            await self._producer.announce(step.recorded)
        if step.stopping is not None:
            try:
                async with asyncio.timeout(TELL_TIMEOUT_S):
                    await send_cancel(self._log.redis, self._settings.namespace, step.stopping, run.reason)
            except (RedisError, OSError, TimeoutError) as error:
                logger.warning("a cancel is left to the leases", job_id=step.stopping, error=type(error).__name__)
