"""Reads one job's events from the two places that have them: the log, and SQL."""

from __future__ import annotations

import asyncio

import structlog
from redis.exceptions import RedisError

from schemas.job_event import EventId
from storage.database import Database
from storage.event_log import EventLog, LogEntry
from storage.jobs.views import last_event

#: Events read in one go: what a slow client holds in memory at most.
PAGE = 200
READ_TIMEOUT_S = 2.0

logger = structlog.get_logger(__name__)


class JobReader:
    """The events of one tenant's job. `turns` bounds how many readers use Redis at once."""

    __slots__ = ("_database", "_log", "_tenant", "_turns", "job_id")

    def __init__(self, log: EventLog, database: Database, turns: asyncio.Semaphore, tenant: str, job_id: str) -> None:
        self.job_id = job_id
        self._log = log
        self._database = database
        self._turns = turns
        self._tenant = tenant

    async def read_log(self, after: EventId) -> tuple[list[LogEntry], bool]:
        """The events after an id, oldest first, and whether there may be more; none if the log cannot be read."""
        try:
            async with self._turns, asyncio.timeout(READ_TIMEOUT_S):
                entries = await self._log.read(self.job_id, after, PAGE)
        except (RedisError, OSError, TimeoutError) as error:
            logger.debug("the event log cannot be read", job_id=self.job_id, error=type(error).__name__)
            return [], False
        return entries, len(entries) == PAGE

    async def last_event(self) -> tuple[EventId, bytes, bool]:
        """The event of the job's last transition, and whether the job has ended.

        Raises NotFound if the job is gone, and StorageUnavailable.
        """
        return await self._database.read(last_event, self._tenant, self.job_id)
