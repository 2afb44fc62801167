"""A worker in pieces, and what a test asks of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import orjson
from pydantic import SecretStr
from sqlalchemy import select

from handlers.factory import HandlerFactory
from handlers.tools import build_registry
from schemas.chat_job import DEFAULT_TENANT, ChatJob
from schemas.fold import Fold
from schemas.job_event import TERMINAL_KINDS, EventId
from schemas.settings import FrameworkEntry, Settings
from schemas.tool import Tool
from storage.database import Database, open_database
from storage.event_log import EventLog
from storage.jobs.cancel import request_cancel
from storage.jobs.statements import read_clock
from storage.jobs.views import get_attempts, get_job
from storage.messages import read_branch
from storage.redis_client import open_redis
from storage.tables import dead_letters, sessions, transitions
from tests.integration.workers.scripted import PATH, script
from workers.desk import Desk
from workers.event_writer import EventWriter
from workers.leases import LeaseThread
from workers.loop_watch import LoopWatch
from workers.producer import Producer
from workers.reconciler import Reconciler

T = TypeVar("T")
#: Whatever a test waits for takes milliseconds; this is when it has failed.
PATIENCE_S = 20.0
#: A step that never ends.
NOWHERE = ("until", "/nowhere")


async def eventually(look: Callable[[], Awaitable[T]]) -> T:
    """What `look` returns, once that is true; fails after PATIENCE_S with what it returned last."""
    give_up = time.monotonic() + PATIENCE_S
    while not (found := await look()):
        if time.monotonic() > give_up:
            raise AssertionError(f"it never came about; last seen: {found!r}")
        await asyncio.sleep(0.005)
    return found


async def file_appears(path: Path) -> None:
    """Wait for a script's `touch`."""

    async def look() -> bool:
        return path.exists()  # noqa: ASYNC240 - a local file of the test

    await eventually(look)


def settings_of(redis_url: str, database_url: str, namespace: str, **named: Any) -> Settings:
    """Settings of a worker whose agents play scripts, that retries and reconciles at once."""
    values: dict[str, Any] = {
        "retry_delay_s": 0,
        "reconcile_s": 0.05,
        "frameworks": {"scripted": FrameworkEntry(handler=PATH)},
        "agent_framework": "scripted",
        **named,
    }
    return Settings(redis_url=SecretStr(redis_url), database_url=SecretStr(database_url), namespace=namespace, **values)


class Mill:
    """One worker: `desk.look()` answers what is due, `reconciler.reconcile()` makes one pass."""

    def __init__(
        self,
        redis_url: str,
        database_url: str,
        namespace: str,
        *,
        database: Database | None = None,
        own_tools: Sequence[Tool] = (),
        **named: Any,
    ) -> None:
        self.settings = settings_of(redis_url, database_url, namespace, **named)
        self.database = database or open_database(self.settings.sqlalchemy_url)
        self.redis = open_redis(redis_url)
        self.log = EventLog(self.redis, namespace, ttl_live_s=3600, ttl_ended_s=3600)
        self.writer = EventWriter(self.database, self.log)
        self.producer = Producer(self.settings, self.database, self.log)
        handlers = HandlerFactory({name: entry.handler for name, entry in self.settings.frameworks.items()})
        registry = build_registry()
        for tool in own_tools:
            registry.register(tool)
        self.desk = Desk(self.settings, self.database, self.log, self.writer, handlers, registry)
        self.reconciler = Reconciler(self.settings, self.database, self.log, self.producer)
        self._leases: LeaseThread | None = None
        self._watch: LoopWatch | None = None

    async def __aenter__(self) -> Self:
        self.writer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.desk.begin_shutdown()
        self.desk._release_all()
        await self.desk.close()
        if self._leases is not None:
            await self._leases.close()
        if self._watch is not None:
            await self._watch.close()
        await self.writer.close()
        await self.redis.aclose()
        await self.database.close()

    def renew_leases(self) -> None:
        """Start the threads that renew leases and watch the loop; they are ended with the worker."""
        self._watch = LoopWatch()
        self._watch.start()
        self._leases = LeaseThread(self.settings, self.desk, self._watch)
        self._leases.start()

    async def accept(self, message: str, **fields: Any) -> str:
        """Accept a job; returns its id."""
        return (await self.producer.accept(ChatJob(message=message, **fields))).job_id

    async def answer(self, message: str, **fields: Any) -> str:
        """Accept a job and answer all that is due; returns its id."""
        job_id = await self.accept(message, **fields)
        async with asyncio.timeout(PATIENCE_S):
            await self.desk.look()
        return job_id

    def looking(self) -> asyncio.Task[None]:
        """Answer what is due, beside the test."""
        return asyncio.create_task(self.desk.look())

    async def cancel(self, job_id: str, reason: str = "enough") -> str:
        """Ask for a job's end, in SQL only; returns what became of the wish."""
        request = await self.database.write(request_cancel, DEFAULT_TENANT, job_id, reason)
        if request.recorded is not None:
            await self.producer.announce(request.recorded)
        return request.result

    async def job(self, job_id: str) -> dict[str, Any]:
        return await self.database.read(get_job, DEFAULT_TENANT, job_id)

    async def status(self, job_id: str) -> str:
        return str((await self.job(job_id))["status"])

    async def ended(self, job_id: str) -> dict[str, Any]:
        """The job's row, once it has ended."""

        async def look() -> dict[str, Any] | None:
            job = await self.job(job_id)
            return job if job["status"] in ("finished", "dead", "cancelled") else None

        job = await eventually(look)
        assert job is not None
        return job

    async def attempts(self, job_id: str) -> list[dict[str, Any]]:
        return await self.database.read(get_attempts, job_id)

    async def rows(self, table: Any, **where: Any) -> list[dict[str, Any]]:
        """Rows of a table, in the order of their first column."""
        query = select(table).order_by(*table.primary_key.columns).filter_by(**where)
        return await self.database.read(lambda connection: [dict(row) for row in connection.execute(query).mappings()])

    async def now_us(self) -> int:
        """The database's time."""
        return await self.database.read(read_clock)

    async def dead_letters(self, job_id: str) -> list[dict[str, Any]]:
        return await self.rows(dead_letters, job_id=job_id)

    async def transitions(self, job_id: str) -> list[str]:
        """The kinds of the job's transitions, in order."""
        return [row["kind"] for row in await self.rows(transitions, job_id=job_id)]

    async def branch(self, session_id: str) -> list[tuple[str, str]]:
        """(role, content) of the session's active branch."""
        (session,) = await self.rows(sessions, id=session_id)
        messages = await self.database.read(read_branch, DEFAULT_TENANT, session_id, session["active_leaf"])
        return [(message.role, message.content) for message in messages]

    async def events(self, job_id: str) -> list[tuple[EventId, dict[str, Any]]]:
        """The job's log."""
        return [(entry.id, orjson.loads(entry.event)) for entry in await self.log.read(job_id)]

    async def kinds(self, job_id: str) -> list[str]:
        return [event["kind"] for _, event in await self.events(job_id)]

    async def fold(self, job_id: str) -> Fold:
        """What a client shows that reads the log from its start."""
        fold = Fold()
        for event_id, event in await self.events(job_id):
            fold.apply(event_id, event)
        return fold


async def running(mill: Mill, tmp_path: Path, *steps: object, **fields: object) -> tuple[str, asyncio.Task[None]]:
    """A job whose attempt has played these steps and waits now."""
    begun = tmp_path / "begun"
    job_id = await mill.accept(script(*steps, ("touch", str(begun)), NOWHERE), **fields)
    looking = mill.looking()
    await file_appears(begun)
    return job_id, looking


async def settled(looking: asyncio.Task[None]) -> None:
    """Wait until all that was due is answered and settled."""
    async with asyncio.timeout(PATIENCE_S):
        await looking


async def caught_up(mill: Mill, job_id: str) -> list[str]:
    """The kinds of the job's events once the reconciler has done what was left to it."""

    async def has_end() -> bool:
        await mill.reconciler.reconcile()
        kinds = await mill.kinds(job_id)
        return bool(kinds) and kinds[-1] in TERMINAL_KINDS

    await eventually(has_end)
    for _ in range(3):
        await mill.reconciler.reconcile()
    kinds = await mill.kinds(job_id)
    assert sum(kind in TERMINAL_KINDS for kind in kinds) == 1
    return kinds
