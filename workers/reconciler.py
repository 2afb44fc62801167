"""The reconciler: does again what a crash or an outage kept somebody from doing.

Every worker and gateway process runs one. Two at once do no harm: each transition is guarded, each append may be
repeated, and a ring too many finds nothing.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import structlog
from redis.exceptions import RedisError

from schemas.errors import StorageUnavailable, TransitionRefused
from schemas.settings import Settings
from storage.breakers import held_jobs, release_held
from storage.clock import to_us
from storage.database import Database
from storage.event_log import Batch, EventLog
from storage.jobs import settle
from storage.jobs.reconcile import (
    Moved,
    Stale,
    expired_jobs,
    lapsed_jobs,
    moved_jobs,
    overdue_lanes,
)
from storage.jobs.statements import Recorded
from storage.jobs.views import find_transitions
from storage.lanes import is_alone
from storage.retention import old_jobs, remove_decided, remove_jobs
from storage.writable import read_clock_for_writing
from workers.contact import Contact
from workers.lost_attempts import keep_what_was_shown
from workers.producer import Producer
from workers.ring import ring, waiting_rings

#: A pass does at most this much of each kind; the next one goes on.
MOST = 200
#: How long the jobs of one kind may take a pass, in seconds; the others' turn comes then, and the next pass at once.
TRANSITIONS_S = 0.05
#: A job that has been due for this long without being claimed: its ring may be lost.
RING_PATIENCE_S = 1.0
#: At its start, and now and then, a reconciler looks this far back for events that nobody appended.
LOOK_BACK_S = 60.0
#: Moves younger than this are left to whoever made them.
PATIENCE_S = 0.5
#: How far the next look reaches back behind this one: a transaction may commit later than its statements say.
SETTLE_S = 3.0
#: Jobs whose logs are looked at in one pass.
MOST_MOVED = 300
#: A transition that takes longer says that writes stall, though reads may go on.
SLOW_WRITE_S = 1.0
#: Jobs that retention removes in one transaction, and how often it looks whether there are any.
RETAIN_MOST = 100
RETAIN_EVERY_S = 60.0
#: One process at a time appends missing events: harmless twice, but twice the work.
REPLAY_LOCK_S = 5.0

logger = structlog.get_logger(__name__)


@dataclass(slots=True)
class Pass:
    """What one pass did."""

    rung: int = 0
    expired: int = 0
    lapsed: int = 0
    appended: int = 0
    #: Jobs whose breaker has closed, or lets one try.
    freed: int = 0
    #: Jobs, quarantined messages and bulk runs that retention has removed.
    removed: int = 0


class Reconciler:
    """Runs passes for as long as its process lives."""

    def __init__(self, settings: Settings, database: Database, log: EventLog, producer: Producer) -> None:
        self._settings = settings
        self._database = database
        self._log = log
        self._producer = producer
        self._metrics = producer.metrics
        self._contact = Contact(to_us(settings.lease_s), to_us(max(settings.lease_s / 3, 3 * settings.reconcile_s)))
        #: Database time up to which every transition's event is in the log.
        self._logged_until: int | None = None
        self._sql_was_down = False
        #: A pass has used up its time.
        self._unfinished = False
        #: When the next long look at the log is due, and when retention looks again, in monotonic seconds.
        self._look_back_at = 0.0
        self._retain_at = 0.0

    async def run(self) -> None:
        """Make passes until cancelled."""
        while True:
            # At once if the last pass had to leave something undone.
            pause_s = 0.0 if self._unfinished else self._settings.reconcile_s
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))  # noqa: S311 - spreads processes
            self._unfinished = False
            began = time.perf_counter()
            try:
                done = await self.reconcile()
            except StorageUnavailable as error:
                self._contact.lost()
                self._metrics.reconciler_failures.inc()
                if not self._sql_was_down:
                    logger.warning("the reconciler waits: SQL does not answer", error=str(error))
                self._sql_was_down = True
                continue
            except Exception:
                self._metrics.reconciler_failures.inc()
                logger.exception("a reconciler pass failed")
                continue
            self._sql_was_down = False
            self._metrics.reconciler_pass.observe(time.perf_counter() - began)
            for kind, count in asdict(done).items():
                self._metrics.reconciler_work.labels(kind).inc(count)
            if done != Pass():
                logger.info("reconciled", **asdict(done))

    async def reconcile(self) -> Pass:
        """One pass. Raises StorageUnavailable; Redis may be down."""
        # Reads that go on while writes do not prove nothing: nobody could renew a lease then.
        now = await self._database.write(read_clock_for_writing)
        self._contact.seen(now, time.monotonic_ns() // 1000)
        done = Pass()
        expired: list[Recorded] = []
        if self._contact.is_long:
            past = await self._database.read(expired_jobs, MOST, now)
            expired = await self._transition(settle.expire, past, now)
        freed = await self._database.write(release_held, MOST) if await self._holds() else {}
        done.freed = sum(freed.values())
        done.removed = await self._retain()
        done.expired = len(expired)
        done.lapsed = len(await self._transition(settle.lapse, await self._database.read(lapsed_jobs, MOST)))
        try:
            done.rung = await self._ring_for(freed) + await self._ring_again()
            done.appended = await self._append_missing(now)
        except (RedisError, OSError) as error:
            logger.debug("the reconciler waits for Redis", error=type(error).__name__)
        if expired:
            await keep_what_was_shown(self._database, self._log, expired)
        return done

    async def _transition(self, transition: Callable[..., Recorded], stale: list[Stale], *more: int) -> list[Recorded]:
        done: list[Recorded] = []
        give_up = time.monotonic() + TRANSITIONS_S
        for job in stale:
            began = time.monotonic()
            if done and began > give_up:
                self._unfinished = True
                return done
            try:
                recorded = await self._database.write(transition, job.job_id, job.epoch, *more)
            except TransitionRefused:
                continue  # somebody else was there first, or the lease was renewed after all
            except StorageUnavailable as error:
                # Perhaps only this row is held by somebody; the rest of the pass must not wait for it.
                logger.warning("a job could not be moved on", job_id=job.job_id, error=str(error))
                self._contact.lost()
                return done
            took_s = time.monotonic() - began
            logger.warning("job moved on by the reconciler", job_id=job.job_id, transition=recorded.kind)
            await self._producer.announce(recorded)
            done.append(recorded)
            if took_s > SLOW_WRITE_S:
                # Commits stall, and with them the renewals of workers that are well: what was seen before is stale.
                self._contact.lost()
                return done
        return done

    async def _holds(self) -> bool:
        return bool(await self._database.read(held_jobs, 1))

    async def _retain(self) -> int:
        """Remove some of what has ended long ago; now and then, or again at once while there is more."""
        now = time.monotonic()
        if now < self._retain_at:
            return 0
        keep_us = to_us(self._settings.retain_jobs_s)
        old = await self._database.read(old_jobs, keep_us, RETAIN_MOST)
        removed = await self._database.write(remove_jobs, old) if old else 0
        if len(old) < RETAIN_MOST:
            self._retain_at = now + RETAIN_EVERY_S
            removed += await self._database.write(remove_decided, keep_us)
        return removed

    async def _ring_for(self, freed: dict[str, int]) -> int:
        """Ring for jobs that were let go just now: they have waited long enough."""
        rung = 0
        for lane, count in freed.items():
            if not is_alone(lane):
                await ring(self._log.redis, self._settings.namespace, lane, times=count)
                rung += count
        return rung

    async def _ring_again(self) -> int:
        overdue = await self._database.read(overdue_lanes, to_us(RING_PATIENCE_S), MOST)
        rung = 0
        for queue, count in overdue.items():
            missing = count - await waiting_rings(self._log.redis, self._settings.namespace, queue)
            if missing > 0:
                await ring(self._log.redis, self._settings.namespace, queue, times=missing)
                rung += missing
        return rung

    async def _append_missing(self, now: int) -> int:
        """Append the events of transitions whose makers could not.

        Only a job's newest transition can be missing in a way that matters: older epochs are void or already there.
        """
        if self._logged_until is None or time.monotonic() >= self._look_back_at:
            # Before Redis is asked: it may have been away for longer than this by the time it answers. And again now
            # and then: a transaction may be committed long after its statements say, by somebody who dies then.
            self._logged_until = min(self._logged_until or now, now - to_us(LOOK_BACK_S))
            self._look_back_at = time.monotonic() + LOOK_BACK_S / 2
        lock = f"{self._settings.namespace}:reconciler"
        if not await self._log.redis.set(lock, "1", nx=True, px=round(REPLAY_LOCK_S * 1000)):
            self._logged_until = None  # somebody else is at it; start with a long look when it is our turn
            return 0
        try:
            moved = await self._database.read(moved_jobs, self._logged_until, MOST_MOVED)
            appended = await self._append([job for job in moved if job.at < now - to_us(PATIENCE_S)])
            settled = now - to_us(SETTLE_S)
            until = moved[-1].at if len(moved) == MOST_MOVED else now
            # What has just moved is looked at again in any case, and no reason to hurry.
            self._unfinished |= until < settled
            self._logged_until = min(until, settled)
            return appended
        finally:
            await self._log.redis.delete(lock)

    async def _append(self, moved: list[Moved]) -> int:
        """Append the events that their logs do not have; returns how many these were."""
        if not moved:
            return 0
        last_ids = await self._log.last_ids([job.job_id for job in moved])
        missing = [
            (job.job_id, job.epoch)
            for job, last in zip(moved, last_ids, strict=True)
            if last is None or last.epoch < job.epoch
        ]
        # A rebuild's event is its writer's alone: only it knows what was shown.
        batches = [
            Batch(recorded.job_id, recorded.epoch, 0, (recorded.event,), recorded.terminal)
            for recorded in await self._database.read(find_transitions, missing)
            if recorded.kind != "rebuild"
        ]
        for result in await self._log.append_all(batches) if batches else ():
            if isinstance(result, Exception):
                raise result  # the same look is made again
        return len(batches)
