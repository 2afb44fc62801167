"""What is done to Redis."""

from __future__ import annotations

import asyncio
import random
import shutil

from tests.chaos.stage import Stage

#: Where Valkey keeps its append-only file.
FILES = "appendonlydir"


async def cut_pubsub(stage: Stage, rng: random.Random) -> None:
    """CLIENT KILL of every connection that listens."""
    await _command(stage, "cut_pubsub", "CLIENT KILL TYPE pubsub")


async def cut_redis(stage: Stage, rng: random.Random) -> None:
    """CLIENT KILL of every connection."""
    await _command(stage, "cut_redis", "CLIENT KILL TYPE pubsub", "CLIENT KILL TYPE normal SKIPME yes")


async def flush_redis(stage: Stage, rng: random.Random) -> None:
    """FLUSHALL, and SCRIPT FLUSH with it."""
    await _command(stage, "flush_redis", "FLUSHALL", "SCRIPT FLUSH")


async def restart_redis(stage: Stage, rng: random.Random) -> None:
    """It ends in order and comes back with its file."""
    happening = stage.begin("restart_redis", "redis")
    await stage.valkey.stop()
    await stage.valkey.start()
    stage.end(happening)


async def stop_redis(stage: Stage, rng: random.Random) -> None:
    """It is away for a while."""
    happening = stage.begin("stop_redis", "redis")
    await stage.valkey.stop()
    await asyncio.sleep(stage.scale.outage_s)
    await stage.valkey.start()
    stage.end(happening)


async def empty_redis(stage: Stage, rng: random.Random) -> None:
    """It crashes and comes back without its file."""
    happening = stage.begin("empty_redis", "redis")
    await stage.valkey.kill()
    shutil.rmtree(stage.valkey.folder / FILES, ignore_errors=True)
    await stage.valkey.start()
    stage.end(happening)


async def rollback_redis(stage: Stage, rng: random.Random) -> None:
    """It crashes and comes back with an older file."""
    files, copy = stage.valkey.folder / FILES, stage.valkey.folder / "older"
    shutil.rmtree(copy, ignore_errors=True)
    await asyncio.to_thread(shutil.copytree, files, copy)
    await asyncio.sleep(stage.scale.rollback_s)
    happening = stage.begin("rollback_redis", "redis")
    await stage.valkey.kill()
    shutil.rmtree(files)
    copy.rename(files)
    await stage.valkey.start()
    stage.end(happening)


async def _command(stage: Stage, fault: str, *commands: str) -> None:
    redis = stage.redis()
    happening = stage.begin(fault, "redis")
    try:
        for command in commands:
            await redis.execute_command(*command.split())  # type: ignore[no-untyped-call] # redis-py's
    finally:
        stage.end(happening)
        await redis.aclose()
