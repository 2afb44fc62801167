"""What claims and the reconciler cost in a database with a long past and a full queue."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from benchmarks.figures import Spread
from benchmarks.history import add_history, analyze
from benchmarks.stack import ROOT
from cli.valkey import Valkey
from schemas.agent_message import AgentMessage
from schemas.chat_job import ChatJob
from schemas.errors import StorageUnavailable
from schemas.settings import Settings
from storage import overview, retention
from storage.clock import to_us
from storage.database import Database, open_database
from storage.dead_letters import list_letters
from storage.event_log import EventLog
from storage.jobs import reconcile
from storage.jobs.accept import accept
from storage.jobs.claim import claim
from storage.jobs.settle import finish
from storage.jobs.statements import read_clock
from storage.migrate import migrate
from storage.redis_client import open_redis
from tests.postgres_server import PostgresServer
from workers.producer import Producer
from workers.reconciler import Reconciler

LEASE_US = to_us(15)
CLAIMERS = 8
#: How long the processes compete.
COMPETE_S = 10.0
ROUNDS = 400
PASSES = 100
#: Of unbroken contact before leases are looked at; short, so that the passes do.
CONTACT_S = 1.0


async def measure_claims(kind: str, finished: int, queued: int) -> dict[str, Any]:
    """The figures of one database, `sqlite` or `postgresql`."""
    async with _filled(kind, finished, queued) as (url, database):
        report: dict[str, Any] = {"claim with its commit": await _measure_claims(database)}
        report["looks"] = await _measure_looks(database)
        report["reconciler pass"] = await _measure_passes(url, database)
        report["accept, claim, finish"] = await _measure_whole(database)
        report[f"{CLAIMERS} processes, claim with its commit"] = await _compete(url)
        return report


@contextlib.asynccontextmanager
async def _filled(kind: str, finished: int, queued: int) -> AsyncIterator[tuple[str, Database]]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chatmill-bench-")))
        url = f"sqlite:///{folder / 'chatmill.db'}"
        if kind == "postgresql":
            server = stack.enter_context(PostgresServer())
            url = server.url(stack.enter_context(server.database()))
        database = open_database(url)
        await migrate(database)
        await database.write(add_history, finished)
        for number in range(queued):
            await database.write(accept, ChatJob(message=f"question {number}"), "echo")
        await database.write(analyze)
        try:
            yield url, database
        finally:
            await database.close()


async def _timed(act: Callable[[], Awaitable[Any]], times: int) -> Spread:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await act()
        took.append(time.perf_counter() - began)
    return Spread.of(took)


async def _measure_claims(database: Database) -> dict[str, float]:
    return (await _timed(lambda: database.write(claim, "chat", "bench", LEASE_US), ROUNDS)).milliseconds()


async def _measure_whole(database: Database) -> dict[str, float]:
    async def once() -> None:
        await database.write(accept, ChatJob(message="hello", queue="whole"), "echo")
        claimed = await database.write(claim, "whole", "bench", LEASE_US)
        assert claimed is not None
        await database.write(finish, claimed.job_id, claimed.epoch, [AgentMessage.assistant("hello")], None)

    began = time.perf_counter()
    spread = await _timed(once, ROUNDS)
    return {**spread.milliseconds(), "per_second": round(ROUNDS / (time.perf_counter() - began))}


async def _measure_looks(database: Database) -> dict[str, dict[str, float]]:
    now = await database.read(read_clock)
    month_us = to_us(30 * 86_400)
    looks: dict[str, Callable[[], Awaitable[Any]]] = {
        "due lanes": lambda: database.read(reconcile.overdue_lanes, to_us(1), 200),
        "expired leases": lambda: database.read(reconcile.expired_jobs, 200, now),
        "lapsed deadlines": lambda: database.read(reconcile.lapsed_jobs, 200),
        "recent moves": lambda: database.read(reconcile.moved_jobs, now - to_us(3), 2000),
        "retention": lambda: database.read(retention.old_jobs, month_us, 100),
        "overview": lambda: database.read(overview.read_overview, "default"),
        "metrics": lambda: database.read(overview.read_standing),
        "dead letters": lambda: database.read(list_letters, "default", limit=50, wanted={}),
    }
    return {name: (await _timed(look, PASSES)).milliseconds() for name, look in looks.items()}


async def _measure_passes(url: str, database: Database) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="chatmill-bench-") as folder:
        valkey = Valkey(Path(folder))
        await valkey.start()
        redis = open_redis(valkey.url)
        namespace = f"bench{secrets.token_hex(3)}"
        settings = Settings(
            redis_url=SecretStr(valkey.url),
            database_url=SecretStr(url),
            namespace=namespace,
            lease_s=CONTACT_S,
            lease_renew_s=CONTACT_S / 2,
        )
        log = EventLog(redis, namespace, ttl_live_s=60, ttl_ended_s=60)
        reconciler = Reconciler(settings, database, log, Producer(settings, database, log))
        try:
            # The first passes ring for the whole queue and append the events that nobody has told of. Leases are only
            # looked at after a while of contact.
            began = time.monotonic()
            backlog: list[float] = []
            while backlog[-1:] != [0.0] or time.monotonic() - began < 2 * CONTACT_S:
                at = time.perf_counter()
                done = await reconciler.reconcile()
                backlog.append(time.perf_counter() - at if done.appended or done.expired or done.rung else 0.0)
                await asyncio.sleep(CONTACT_S / 10)
            worked = [seconds for seconds in backlog if seconds]
            return {
                "nothing to do": (await _timed(reconciler.reconcile, PASSES)).milliseconds(),
                "with a backlog": Spread.of(worked).milliseconds() if worked else {},
            }
        finally:
            await redis.aclose()
            await valkey.stop()


async def _compete(url: str) -> dict[str, Any]:
    """Several processes claim and finish from the same queue."""
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.claims", url, str(COMPETE_S)), cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        for _ in range(CLAIMERS)
    ]
    outputs = [(await process.communicate())[0] for process in processes]
    took = [seconds for output in outputs for seconds in json.loads(output)]
    return {**Spread.of(took).milliseconds(), "claims_per_second": round(len(took) / COMPETE_S)}


async def claim_for(url: str, seconds: float) -> list[float]:
    """Claim and finish for so long; how long each claim took, in seconds."""
    database, took = open_database(url), []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        with contextlib.suppress(StorageUnavailable):
            claimed = await database.write(claim, "chat", f"bench{secrets.token_hex(3)}", LEASE_US)
            took.append(time.perf_counter() - began)
            if claimed is None:
                break
            answer = [AgentMessage.assistant("hello")]
            await database.write(finish, claimed.job_id, claimed.epoch, answer, None)
    await database.close()
    return took


if __name__ == "__main__":
    print(json.dumps(asyncio.run(claim_for(sys.argv[1], float(sys.argv[2])))))
