"""What is done to the database: PostgreSQL as a server, SQLite as a file.

A clock cannot be stepped for one machine's processes alone; PostgreSQL's is stepped for this database by a function of
the same name (postgres.py). SQLite's clock is the machine's: its steps are left to the walks of tests/integration.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import time

from tests.chaos.stage import Stage


async def restart_database(stage: Stage, rng: random.Random) -> None:
    """PostgreSQL ends in order, cutting everybody off, and starts again."""
    await _away(stage, "restart_database", signal.SIGINT, 0)


async def crash_database(stage: Stage, rng: random.Random) -> None:
    """PostgreSQL crashes and recovers."""
    await _away(stage, "crash_database", signal.SIGQUIT, 0)


async def stop_database(stage: Stage, rng: random.Random) -> None:
    """PostgreSQL is away for a while."""
    await _away(stage, "stop_database", signal.SIGINT, stage.scale.outage_s)


async def cut_database(stage: Stage, rng: random.Random) -> None:
    """pg_terminate_backend of every connection."""
    happening = stage.begin("cut_database", "database")
    await asyncio.to_thread(stage.postgres.cut_connections, stage.database_name)
    stage.end(happening)


async def read_only_database(stage: Stage, rng: random.Random) -> None:
    """PostgreSQL takes no writes for a while, as the old server of a failover."""
    happening = stage.begin("read_only_database", "database")
    await _set_read_only(stage, "on")
    await asyncio.sleep(stage.scale.outage_s)
    await _set_read_only(stage, "off")
    stage.end(happening)


async def step_clock_forward(stage: Stage, rng: random.Random) -> None:
    """The database's clock jumps ahead, past every lease."""
    await _step(stage, "step_clock_forward", 1 + rng.random())


async def step_clock_back(stage: Stage, rng: random.Random) -> None:
    """The database's clock jumps back."""
    await _step(stage, "step_clock_back", -rng.uniform(0.3, 1))


async def lock_database(stage: Stage, rng: random.Random) -> None:
    """Somebody holds SQLite's write lock for a while."""
    happening = stage.begin("lock_database", "database")
    await asyncio.to_thread(_hold_lock, str(stage.sqlite_file), stage.scale.outage_s)
    stage.end(happening)


async def full_disk(stage: Stage, rng: random.Random) -> None:
    """No file of any worker or gateway can be written (RLIMIT_FSIZE 0), SQLite's included."""
    parts = (*stage.workers, *stage.gateways)
    for part in parts:
        await part.ready()  # on a full disk no worker can start, and whoever starts it has to try again
    happening = stage.begin("full_disk", "database")
    for part in parts:
        part.limit_files(0)
    await asyncio.sleep(stage.scale.outage_s)
    for part in parts:
        part.limit_files(-1)
    stage.end(happening)


async def _away(stage: Stage, fault: str, number: signal.Signals, seconds: float) -> None:
    happening = stage.begin(fault, "database")
    await asyncio.to_thread(stage.postgres.stop, number)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(stage.postgres.start_again)
    stage.end(happening)


async def _set_read_only(stage: Stage, value: str) -> None:
    name = stage.database_name
    statements = (
        "SET default_transaction_read_only = off",
        f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}',
    )
    await asyncio.to_thread(stage.postgres.execute, name, *statements)
    # Only new connections hear of it.
    await asyncio.to_thread(stage.postgres.cut_connections, name)


async def _step(stage: Stage, fault: str, share: float) -> None:
    step_us = round(share * stage.scale.step_s * 1_000_000)
    happening = stage.begin(fault, "clock", f"{step_us / 1e6:+.1f} s")
    await asyncio.to_thread(stage.postgres.step_clock, stage.database_name, stage.clock_step_us + step_us)
    stage.clock_step_us += step_us
    stage.end(happening)


def _hold_lock(file: str, seconds: float) -> None:
    connection = sqlite3.connect(file, timeout=10, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        connection.execute("ROLLBACK")
    finally:
        connection.close()
