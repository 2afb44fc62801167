"""A migrated, empty database of each kind for every test.

The databases are shared by the tests of this process and emptied before each: compiling the statements anew for every
test costs more than the tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
import pytest_asyncio
from sqlalchemy import Connection

from storage.database import Database, PostgresDatabase, open_database
from storage.migrate import migrate
from storage.tables import metadata
from tests.postgres_server import PostgresServer


class Shared(NamedTuple):
    """A database with its address, for tests that open it a second time."""

    url: str
    database: Database


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_sqlite(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    url = f"sqlite:///{tmp_path_factory.mktemp('storage') / 'chatmill.db'}"
    database = open_database(url)
    await migrate(database)
    yield Shared(url, database)
    await database.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_postgres(postgres_server: PostgresServer) -> AsyncIterator[Shared]:
    with postgres_server.database() as name:
        url = postgres_server.url(name)
        database = open_database(url)
        await migrate(database)
        await database.close()
        yield Shared(url, database)


@pytest.fixture(params=["shared_sqlite", "shared_postgres"], ids=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest) -> Shared:
    """A test that asks for a database runs on both."""
    found: Shared = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def database_url(shared: Shared) -> str:
    """Where `database` is."""
    return shared.url


@pytest_asyncio.fixture
async def database(shared: Shared) -> AsyncIterator[Database]:
    async with _emptied(shared.database) as database:
        yield database


@pytest_asyncio.fixture
async def sqlite_database(shared_sqlite: Shared) -> AsyncIterator[Database]:
    """For tests that need this kind only."""
    async with _emptied(shared_sqlite.database) as database:
        yield database


@pytest_asyncio.fixture
async def postgres_database(shared_postgres: Shared) -> AsyncIterator[Database]:
    """For tests that need this kind only."""
    async with _emptied(shared_postgres.database) as database:
        yield database


@asynccontextmanager
async def _emptied(database: Database) -> AsyncIterator[Database]:
    await database.write(_empty)
    yield database
    if isinstance(database, PostgresDatabase):
        # Its connections belong to the loop of this test; the next one opens others.
        await database.close()


def _empty(connection: Connection) -> None:
    for table in metadata.tables.values():
        connection.execute(table.delete())
