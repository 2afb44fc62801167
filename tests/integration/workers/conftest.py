"""Workers in pieces: everything of a worker process but dramatiq, on the test's own event loop.

Every test has a database of its own, a copy of a migrated one: its workers may die in the middle of a transaction.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from cli.valkey import Valkey
from storage.database import open_database
from storage.migrate import migrate
from tests.integration.workers.in_process import in_process_worker
from tests.integration.workers.mill import Mill
from tests.integration.workers.raw_redis import RawRedis
from tests.postgres_server import PostgresServer
from workers.broker import ChatBroker


@pytest.fixture(autouse=True)
def _no_foreign_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file, to be copied."""
    path = tmp_path_factory.mktemp("template") / "chatmill.db"
    await _migrate(f"sqlite:///{path}")
    return path


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_template(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """The name of a migrated PostgreSQL database, to be copied."""
    with postgres_server.database() as name:
        await _migrate(postgres_server.url(name))
        yield name


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The address of a fresh, migrated SQLite file."""
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'chatmill.db')}"


@pytest.fixture
def migrated_postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """The address of a fresh, migrated PostgreSQL database."""
    with postgres_server.database(postgres_template) as name:
        yield postgres_server.url(name)


@pytest.fixture(params=["sqlite_url", "migrated_postgres_url"], ids=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The address of a fresh, migrated database; a test that asks for it runs on both."""
    url: str = request.getfixturevalue(request.param)
    return url


@pytest_asyncio.fixture
async def mill(redis_url: str, database_url: str, namespace: str) -> AsyncIterator[Mill]:
    """A worker on either database."""
    async with Mill(redis_url, database_url, namespace) as mill:
        yield mill


@pytest_asyncio.fixture
async def lite_mill(redis_url: str, sqlite_url: str, namespace: str) -> AsyncIterator[Mill]:
    """A worker on SQLite, for what has nothing to do with the database."""
    async with Mill(redis_url, sqlite_url, namespace, threads=4) as mill:
        yield mill


@pytest_asyncio.fixture
async def worker(lite_mill: Mill) -> AsyncIterator[ChatBroker]:
    """A worker with all of dramatiq's threads, that `lite_mill` watches from beside it."""
    async with in_process_worker(lite_mill.settings) as broker:
        yield broker


@pytest.fixture
def raw(redis_url: str) -> Iterator[RawRedis]:
    """A producer that has nothing but a socket."""
    with RawRedis(redis_url) as raw:
        yield raw


@pytest_asyncio.fixture
async def own_mill(own_valkey: Valkey, sqlite_url: str, namespace: str) -> AsyncIterator[Mill]:
    """A worker whose Redis is its own, to be stopped and flushed."""
    async with Mill(own_valkey.url, sqlite_url, namespace) as mill:
        yield mill


async def _migrate(url: str) -> None:
    database = open_database(url)
    await migrate(database)
    await database.close()
