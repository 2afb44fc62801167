"""A gateway on a real socket, with a played worker behind it."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from schemas.settings import Settings
from storage.database import Database, open_database
from storage.event_log import EventLog
from storage.migrate import migrate
from storage.redis_client import open_redis
from tests.integration.gateway.client import GatewayClient
from tests.integration.gateway.played import PlayedWorker
from tests.integration.gateway.serving import Serving, serve

#: Serves a gateway with these changes to its settings, until the test ends.
ServeGateway = Callable[..., Awaitable[Serving]]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file, to be copied."""
    path = tmp_path_factory.mktemp("gateway") / "chatmill.db"
    database = open_database(f"sqlite:///{path}")
    await migrate(database)
    await database.close()
    return path


@pytest.fixture
def database_url(migrated_sqlite: Path, tmp_path: Path) -> str:
    """The address of a fresh, migrated database."""
    return f"sqlite:///{shutil.copy(migrated_sqlite, tmp_path / 'chatmill.db')}"


@pytest.fixture
def settings(redis_url: str, database_url: str, namespace: str) -> Settings:
    """Settings of a gateway with the demo's models and quick checks."""
    return Settings.model_validate(
        {
            "redis_url": redis_url,
            "database_url": database_url,
            "namespace": namespace,
            "demo_url": "http://127.0.0.1:9/v1",
            "port": 0,
            "idle_check_s": 0.3,
            # The reconciler would make up for what these tests leave out on purpose.
            "reconcile_s": 3600.0,
        }
    )


@pytest_asyncio.fixture
async def serve_gateway(settings: Settings) -> AsyncIterator[ServeGateway]:
    async with AsyncExitStack() as stack:

        async def begin(**changes: Any) -> Serving:
            changed = Settings.model_validate({**settings.model_dump(), **changes})
            return await stack.enter_async_context(serve(changed))

        yield begin


@pytest_asyncio.fixture
async def gateway(serve_gateway: ServeGateway) -> Serving:
    return await serve_gateway()


@pytest_asyncio.fixture
async def client(gateway: Serving) -> AsyncIterator[GatewayClient]:
    async with GatewayClient(gateway.url) as client:
        yield client


@pytest_asyncio.fixture
async def database(settings: Settings) -> AsyncIterator[Database]:
    database = open_database(settings.sqlalchemy_url)
    yield database
    await database.close()


@pytest_asyncio.fixture
async def log(settings: Settings) -> AsyncIterator[EventLog]:
    redis = open_redis(settings.redis_url.get_secret_value())
    yield EventLog(redis, settings.namespace, ttl_live_s=60, ttl_ended_s=60)
    await redis.aclose()


@pytest.fixture
def worker(database: Database, log: EventLog) -> PlayedWorker:
    return PlayedWorker(database, log)
