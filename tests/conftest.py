"""Servers and names that tests share."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from cli.valkey import Valkey
from tests.postgres_server import PostgresServer
from tests.valkey_server import unique_namespace, valkey_server

# Started in the background or by nohup, we have been told to ignore these, and so would every process that tests start
# and then signal. A handler of our own is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_valkey(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Valkey]:
    """One server for all tests of this process, each with a namespace of its own. It keeps nothing on disk.

    Never flush, stop or reconfigure it: use `own_valkey` for that.
    """
    async with valkey_server(tmp_path_factory.mktemp("valkey"), appendonly="no") as valkey:
        yield valkey


@pytest.fixture
def redis_url(shared_valkey: Valkey) -> str:
    return shared_valkey.url


@pytest.fixture
def namespace() -> str:
    """A prefix that no other test uses."""
    return unique_namespace()


@pytest_asyncio.fixture
async def own_valkey(tmp_path: Path) -> AsyncIterator[Valkey]:
    """A server of this test alone, to flush, `stop()`, `kill()` and `start()` again at the same address."""
    async with valkey_server(tmp_path / "valkey") as valkey:
        yield valkey


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of this process; each takes a database of its own from it."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The address of a fresh, empty database."""
    with postgres_server.database() as name:
        yield postgres_server.url(name)
