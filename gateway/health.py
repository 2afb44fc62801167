"""Is the process alive, and is everything there that it needs."""

from __future__ import annotations

import asyncio

from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.types import ASGIApp

from gateway.operation import Answer, Operation, json_response
from gateway.services import Services
from schemas.errors import StorageUnavailable
from schemas.listing import Alive, Part, Readiness
from storage.migrate import current_revision, newest_revision

#: A part that does not answer within this is not ready.
TIMEOUT_S = 2.0


class HealthRoutes:
    """`/healthz` and `/readyz`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._newest = newest_revision()

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/healthz",
                "get_health",
                "Whether the process serves requests",
                self._health,
                {200: Answer("It does.", Alive)},
                quiet=True,
            ),
            Operation(
                "GET",
                "/readyz",
                "get_readiness",
                "Whether Redis, the database and its migrations are there",
                self._ready,
                {200: Answer("They are.", Readiness), 503: Answer("Something is missing.", Readiness)},
                quiet=True,
            ),
        ]

    async def _health(self, request: Request) -> ASGIApp:
        return json_response(Alive())

    async def _ready(self, request: Request) -> ASGIApp:
        redis, (database, migrations) = await asyncio.gather(self._redis(), self._database())
        ready = redis.ready and database.ready and migrations.ready
        readiness = Readiness(ready=ready, redis=redis, database=database, migrations=migrations)
        return json_response(readiness, 200 if ready else 503)

    async def _redis(self) -> Part:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._services.log.redis.ping()
        except (RedisError, OSError, TimeoutError) as error:
            return Part(ready=False, detail=f"does not answer ({type(error).__name__})")
        return Part(ready=True, detail="answers")

    async def _database(self) -> tuple[Part, Part]:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                revision = await current_revision(self._services.database)
        except (StorageUnavailable, SQLAlchemyError, OSError, TimeoutError) as error:
            unknown = Part(ready=False, detail="not known while the database does not answer")
            return Part(ready=False, detail=f"does not answer ({type(error).__name__})"), unknown
        return Part(ready=True, detail=self._services.database.dialect), self._migrations(revision)

    def _migrations(self, revision: str | None) -> Part:
        if revision == self._newest:
            return Part(ready=True, detail=f"at {revision}")
        return Part(ready=False, detail=f"at {revision or 'none'} instead of {self._newest}: run `chatmill migrate`")
