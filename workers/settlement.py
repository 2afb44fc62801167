"""Settle: bring what was shown into the log, commit the one transition that ends the attempt, then tell of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import structlog
from sqlalchemy import Connection

from schemas.errors import JobError, StorageUnavailable, TransitionRefused
from schemas.settings import Settings
from storage.clock import to_us
from storage.database import Database
from storage.jobs import settle
from storage.jobs.move import AttemptRecord
from storage.jobs.statements import Recorded
from storage.jobs.views import find_transition
from workers.attempt import Attempt
from workers.ending import Answered, Cancelled, Ending, Failed, Lost, Released
from workers.event_writer import EventWriter
from workers.job_stream import JobStream

#: How long the log may hold up the commit, and the commit's event the worker. The reconciler does the rest.
LOG_TIMEOUT_S = 1.0
#: Pause between tries while SQL does not answer; the answer is kept in memory meanwhile.
SQL_RETRY_S = (0.1, 0.25, 0.5, 1.0)
#: A retry comes up to this much earlier or later, so that jobs that failed together do not return together.
JITTER = 0.25
#: A provider that is busy and does not say for how long.
BUSY_DELAY_S = 5.0
#: A provider's Retry-After beyond this is a reason to look again, not to sleep.
MAX_DELAY_S = 300.0

#: Transitions that the holder of an epoch makes: found under the next epoch, one of them is our own. (A `cancel` may
#: also be somebody's who found the lease past; its event is then appended twice, which is harmless.)
_OURS = frozenset({"finish", "fail", "defer", "release", "cancel"})

logger = structlog.get_logger(__name__)


class Settlement:
    """Settles attempts; run it as a shielded task."""

    def __init__(self, settings: Settings, database: Database, writer: EventWriter) -> None:
        self._settings = settings
        self._database = database
        self._writer = writer

    async def settle(self, attempt: Attempt, ending: Ending, stream: JobStream) -> Recorded | None:
        """Returns the committed transition, or None if somebody else holds the job."""
        began = time.perf_counter()
        recorded = await self._settle(attempt, ending, stream)
        metrics = self._writer.metrics
        metrics.settle.observe(time.perf_counter() - began)
        if recorded is not None:
            metrics.moved(recorded, attempt.claim.queue)
        return recorded

    async def _settle(self, attempt: Attempt, ending: Ending, stream: JobStream) -> Recorded | None:
        if isinstance(ending, Lost):
            stream.close()
        epoch = await self._writer.seal(stream, LOG_TIMEOUT_S)
        if isinstance(ending, Lost) or (attempt.stop_reason is not None and attempt.stop_reason.name == "LOST"):
            logger.warning("the job was taken over")
            return None
        job_id = attempt.claim.job_id
        try:
            recorded = await self._commit(job_id, epoch, self._transition(job_id, epoch, ending))
        except Exception as error:
            # The database refuses what the agent said: a failure like any other, or the job would hang.
            logger.exception("the outcome cannot be stored")
            failed = Failed(
                JobError(code="unstorable", message="the answer could not be stored", retryable=True),
                charged=True,
                retry_after=None,
                partial=[],
                record=AttemptRecord(error_class=type(error).__name__, trace=str(error)[:1000]),
            )
            recorded = await self._commit(job_id, epoch, self._transition(job_id, epoch, failed))
        if recorded is None:
            logger.warning("the job was taken over before it was settled")
            return None
        await self._writer.append_last(recorded, timeout_s=LOG_TIMEOUT_S)
        return recorded

    def _transition(self, job_id: str, epoch: int, ending: Ending) -> Callable[[Connection], Recorded]:
        match ending:
            case Answered(answer):
                return lambda connection: settle.finish(
                    connection, job_id, epoch, answer.response, answer.usage, answer.outcome
                )
            case Failed() as failed:
                delay_us = to_us(self._delay_s(failed))
                return lambda connection: settle.fail(
                    connection,
                    job_id,
                    epoch,
                    failed.error,
                    delay_us=delay_us,
                    charged=failed.charged,
                    attempt=failed.record,
                    response=failed.partial,
                )
            case Cancelled(reason, partial, record):
                return lambda connection: settle.cancel(connection, job_id, epoch, reason, partial, record)
            case Released(partial, record):
                return lambda connection: settle.release(connection, job_id, epoch, attempt=record, response=partial)
            case Lost():  # pragma: no cover - decided before
                raise TransitionRefused(job_id)

    def _delay_s(self, failed: Failed) -> float:
        if failed.retry_after is not None:
            return min(MAX_DELAY_S, max(0.0, failed.retry_after))
        base = self._settings.retry_delay_s if failed.charged else BUSY_DELAY_S
        return base * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - spreads retries, keeps no secret

    async def _commit(self, job_id: str, epoch: int, transition: Callable[[Connection], Recorded]) -> Recorded | None:
        """Commit the transition exactly once, however long SQL is away; None if the job is somebody else's by now."""
        unknown, refused, tries = False, False, 0
        while True:
            try:
                if unknown:
                    # A commit of unknown fate is never repeated: what the row says is what happened.
                    found = await self._database.read(find_transition, job_id, epoch + 1)
                    if found is not None or refused:
                        return found if found is not None and found.kind in _OURS else None
                return await self._database.write(transition)
            except TransitionRefused:
                if not unknown:
                    return None
                refused = True  # perhaps by our own commit, which arrived after the look
            except StorageUnavailable as error:
                unknown = True
                if tries == 0:
                    logger.warning("SQL does not answer; the outcome waits in memory", error=str(error))
                await asyncio.sleep(SQL_RETRY_S[min(tries, len(SQL_RETRY_S) - 1)])
                tries += 1
