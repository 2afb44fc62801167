"""Keeps what lost attempts had shown, read from their event logs: for whoever asks why a job died."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import orjson
import structlog
from redis.exceptions import RedisError

from schemas.fold import Fold
from schemas.job_event import EventId
from schemas.stream_event import ToolNote
from storage.database import Database
from storage.event_log import READ_COUNT, EventLog
from storage.jobs.lost import keep_shown, lost_attempt
from storage.jobs.statements import Recorded

#: A pass's lost attempts get this long together, so that it stays short; what is not kept by then never is.
PATIENCE_S = 2.0
#: Events read of one attempt; what it showed after them is not kept.
MOST_EVENTS = 50_000

logger = structlog.get_logger(__name__)


async def keep_what_was_shown(database: Database, log: EventLog, ended: Sequence[Recorded]) -> None:
    """For transitions that ended lost attempts: fold what their logs have into the attempts' rows.

    Best effort: without Redis nothing is kept. Raises StorageUnavailable.
    """
    kept = 0
    try:
        async with asyncio.timeout(PATIENCE_S):
            for recorded in ended:
                await _keep(database, log, recorded)
                kept += 1
    except (RedisError, OSError, TimeoutError) as error:
        logger.warning("what lost attempts had shown is not kept", left=len(ended) - kept, error=type(error).__name__)


async def _keep(database: Database, log: EventLog, recorded: Recorded) -> None:
    lost = await database.read(lost_attempt, recorded.job_id, recorded.epoch)
    if lost is None:
        return
    text, tools = await _shown(log, recorded.job_id, lost.epoch, recorded.epoch)
    if text or tools:
        await database.write(keep_shown, recorded.job_id, lost.attempt, text, tools)


async def _shown(log: EventLog, job_id: str, begun: int, ended: int) -> tuple[str, list[ToolNote]]:
    """What the log has of the epochs from `begun` until before `ended`: the attempt's own, and its rebuilds'."""
    fold, last, read = Fold(), EventId(begun, 0), 0
    while read < MOST_EVENTS:
        entries = await log.read(job_id, last)
        read += len(entries)
        for entry in entries:
            if entry.id.epoch >= ended:
                return fold.text, cast(list[ToolNote], fold.tools)
            fold.apply(entry.id, orjson.loads(entry.event))
        if len(entries) < READ_COUNT:
            break
        last = entries[-1].id
    return fold.text, cast(list[ToolNote], fold.tools)
