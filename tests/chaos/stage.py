"""All processes of a run: Valkey, the database, the demo model, two workers of two processes each, two gateways."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from redis.asyncio import Redis

from cli.ports import LOOPBACK, free_port
from cli.valkey import Valkey
from schemas.errors import StorageUnavailable
from storage.database import Database, open_database
from storage.migrate import migrate
from tests.chaos import effects
from tests.chaos.happenings import Happening, Timeline
from tests.chaos.part import Part
from tests.chaos.postgres import ChaosPostgres
from tests.chaos.scale import Scale
from tests.valkey_server import unique_namespace, valkey_server

ROOT = Path(__file__).parents[2]
WORKERS = 2
PROCESSES = 2
GATEWAYS = 2
THREADS = 40
TOOLS = f"""\
[tools]
record = "{effects.__name__}:RECORD"
record_in_a_thread = "{effects.__name__}:RECORD_IN_A_THREAD"
"""


class Stage:
    """Use it as an async context; nothing of it is left afterwards. `dialect` is `sqlite` or `postgresql`."""

    def __init__(self, folder: Path, dialect: str, scale: Scale) -> None:
        self.folder = folder
        self.dialect = dialect
        self.scale = scale
        self.timeline = Timeline()
        self.namespace = unique_namespace()
        self.effects = folder / "effects"
        self.valkey: Valkey
        self.postgres: ChaosPostgres
        self.database: Database
        self.database_name = ""
        self.model: Part
        self.workers: list[Part] = []
        self.gateways: list[Part] = []
        self.gateway_urls: list[str] = []
        self.model_port = 0
        self.gateway_ports: list[int] = []
        self._database_url = ""
        self._stack = AsyncExitStack()
        #: By how much the database's clock is ahead of the machine's.
        self.clock_step_us = 0

    async def __aenter__(self) -> Self:
        try:
            await self._set_up()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def now_us(self) -> int:
        """The database's time."""
        return time.time_ns() // 1000 + self.clock_step_us

    @property
    def sqlite_file(self) -> Path:
        return self.folder / "chatmill.db"

    def redis(self) -> Redis:
        """A client of its own, to be closed by whoever asked."""
        return Redis.from_url(self.valkey.url, socket_timeout=10, socket_connect_timeout=5)

    def begin(
        self,
        fault: str,
        family: str,
        target: str = "",
        *,
        victims: frozenset[int] = frozenset(),
        told: frozenset[int] = frozenset(),
    ) -> Happening:
        """Write down that a fault begins."""
        happening = Happening(fault, family, target, self.now_us(), victims=victims, told=told)
        self.timeline.happenings.append(happening)
        return happening

    def end(self, happening: Happening) -> None:
        """Write down that it is over; the clock may have been stepped meanwhile."""
        now = self.now_us()
        happening.begin, happening.end = min(happening.begin, now), max(happening.begin, now)

    def start_worker(self, worker: Part) -> None:
        worker.start(ready=PROCESSES)

    def any_gateway(self, rng: random.Random) -> str:
        """The address of one of them; it may be down."""
        return rng.choice(self.gateway_urls)

    async def stop_all(self) -> dict[str, int]:
        """End workers and gateways in order; their exit codes. Raises PartFailed."""
        parts = [*self.workers, *self.gateways]
        codes = await asyncio.gather(*(part.stop() for part in parts if part.running))
        return dict(zip([part.name for part in parts], codes, strict=False))

    async def _set_up(self) -> None:
        self.valkey = await self._stack.enter_async_context(valkey_server(self.folder / "valkey"))
        await self._open_database()
        self.model_port = free_port()
        self.model = self._part(
            "model", "-m", "demo", "--port", str(self.model_port), "--pace", "10", ready="demo model ready"
        )
        (self.folder / "chatmill.toml").write_text(TOOLS, encoding="utf-8")
        for number in range(WORKERS):
            self.workers.append(self._part(f"worker{number}", "-m", "cli.main", "worker", ready='"worker ready"'))
        for number in range(GATEWAYS):
            port = free_port()
            self.gateway_urls.append(f"http://{LOOPBACK}:{port}")
            arguments = ("-m", "cli.main", "gateway", "--port", str(port))
            self.gateways.append(self._part(f"gateway{number}", *arguments, ready='"the gateway listens"'))
        for part in (self.model, *self.gateways):
            part.start()
        for worker in self.workers:
            self.start_worker(worker)
        for part in (self.model, *self.gateways, *self.workers):
            await part.ready()

    async def _open_database(self) -> None:
        if self.dialect == "postgresql":
            self.postgres = ChaosPostgres()
            await asyncio.to_thread(self.postgres.__enter__)
            self._stack.push_async_callback(asyncio.to_thread, self.postgres.__exit__)
            self.database_name = "chaos"
            await asyncio.to_thread(self.postgres.execute, "postgres", 'CREATE DATABASE "chaos"')
            self._database_url = self.postgres.url(self.database_name)
        else:
            self._database_url = f"sqlite:///{self.sqlite_file}"
        database = open_database(self._database_url)
        await migrate(database)
        await database.close()
        if self.dialect == "postgresql":
            await asyncio.to_thread(self.postgres.shadow_clock, self.database_name)
        self.database = open_database(self._database_url)
        self._stack.push_async_callback(self.database.close)

    def _part(self, name: str, *arguments: str, ready: str) -> Part:
        command = [sys.executable, *arguments]
        part = Part(name, self.folder, command, self._environment(), lambda line: ready in line)
        self._stack.push_async_callback(_put_away, part)
        return part

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CHATMILL_", "OPENAI_"))}
        return {
            **inherited,
            **self.scale.environment(),
            "PYTHONPATH": str(ROOT),
            "REDIS_URL": self.valkey.url,
            "DATABASE_URL": self._database_url,
            "CHATMILL_DATA_DIR": str(self.folder / "data"),
            "CHATMILL_NAMESPACE": self.namespace,
            "CHATMILL_DEMO_URL": f"http://{LOOPBACK}:{self.model_port}/v1",
            "CHATMILL_MODEL": "demo",
            "CHATMILL_PROCESSES": str(PROCESSES),
            "CHATMILL_THREADS": str(THREADS),
            "CHATMILL_LOG_FORMAT": "json",
            effects.VARIABLE: str(self.effects),
        }


async def _put_away(part: Part) -> None:
    if part.running:
        part.thaw()
        await part.kill()


async def database_answers(stage: Stage) -> bool:
    """Whether SQL can be asked at this moment."""
    try:
        await stage.database.read(lambda connection: connection.exec_driver_sql("SELECT 1").scalar())
    except StorageUnavailable:
        return False
    return True
