"""Do the clocks of this machine, the database and Redis agree?

The database's clock alone decides about jobs. A difference shows in logs and in when events seem to have happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from redis.exceptions import RedisError
from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from cli.check import TIMEOUT_S, Check
from cli.check_database import missing_file
from schemas.errors import ConfigurationError, StorageUnavailable
from storage.clock import MICROSECONDS, now_us
from storage.database import open_database
from storage.redis_client import open_redis

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from schemas.settings import Settings

MOST_S = 1.0
_SILENCE = (ConfigurationError, StorageUnavailable, SQLAlchemyError, RedisError, OSError, TimeoutError)


async def check_clocks(settings: Settings) -> list[Check]:
    """Compares both with this machine's; what does not answer is left out: it is found wrong elsewhere."""
    findings = []
    for name, lead in (("database clock", _database_lead), ("redis clock", _redis_lead)):
        with contextlib.suppress(*_SILENCE):
            async with asyncio.timeout(TIMEOUT_S):
                findings.append(judge_clock(name, await lead(settings)))
    return findings


def judge_clock(name: str, difference: float) -> Check:
    """What to think of a clock that is `difference` seconds ahead of this machine's."""
    if abs(difference) <= MOST_S:
        return Check.ok(name, f"{abs(difference):.3f} s from this machine's")
    way = "ahead of" if difference > 0 else "behind"
    return Check.warning(
        name, f"{abs(difference):.1f} s {way} this machine's", "let both machines keep their time with NTP"
    )


async def _database_lead(settings: Settings) -> float:
    if missing_file(settings.sqlalchemy_url) is not None:
        raise StorageUnavailable
    database = open_database(settings.sqlalchemy_url)
    try:
        await database.read(_now)  # connects
        return await _lead(lambda: database.read(_now))
    finally:
        await database.close()


async def _redis_lead(settings: Settings) -> float:
    client = open_redis(settings.redis_url.get_secret_value(), socket_timeout=TIMEOUT_S)

    async def now() -> float:
        seconds, micros = await client.time()
        return float(seconds + micros / MICROSECONDS)

    try:
        await now()  # connects
        return await _lead(now)
    finally:
        await client.aclose()


async def _lead(now: Callable[[], Awaitable[float]]) -> float:
    """Seconds that a clock is ahead of ours, read in the middle of asking for it."""
    before = time.time()
    there = await now()
    return there - (before + time.time()) / 2


def _now(connection: Connection) -> float:
    return connection.execute(select(now_us())).scalar_one() / MICROSECONDS
