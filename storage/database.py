"""One way to run a function in a transaction, on SQLite and on PostgreSQL.

Storage code is written once, as plain functions of a SQLAlchemy Connection. On PostgreSQL they run through
`AsyncConnection.run_sync`; on SQLite on the process's one writer thread, since SQLite has one writer anyway and a
thread hop costs a fifth of what an async driver does.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import StaticPool

from schemas.errors import ConfigurationError, StorageUnavailable

P = ParamSpec("P")
T = TypeVar("T")

#: The first that knows RETURNING and MATERIALIZED.
SQLITE_OLDEST = (3, 35)
#: How long a SQLite writer waits for the other processes' transactions.
SQLITE_BUSY_S = 10.0
#: SQLite's own busy handler backs off so far that one of eight writers was seen to starve for a second.
SQLITE_NAP_S = (0.0002, 0.002)
SQLITE_READERS = 2
#: PostgreSQL rolls a deadlocked or unserializable transaction back: it has not happened and may be run again.
ROLLED_BACK_STATES = frozenset({"40001", "40P01"})
ROLLED_BACK_TRIES = 5
#: A process that stands still or vanishes inside a transaction must not keep its locks, nor a cut network a caller,
#: for the hours and minutes that are the defaults. Each one can be set otherwise in DATABASE_URL.
POSTGRES_LIMITS: dict[str, str | int] = {
    "connect_timeout": 5,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "options": "-c idle_in_transaction_session_timeout=15000 -c lock_timeout=10000",
}
#: A PostgreSQL that is read-only for a while: the old server of a failover, or the new one before its promotion.
READ_ONLY_STATE = "25006"


class RunAgain(Exception):
    """Raised by a function that found, holding its locks, that it has to take others: roll back and call it again."""


class CommitAndRunAgain(Exception):
    """Raised by a function that has done a part and must let go of its locks before the next: commit and call again."""


class Database(ABC):
    """Runs functions of a Connection in transactions; `read` may not write."""

    dialect: str

    @abstractmethod
    async def write(self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` in one transaction and commit it.

        Raises StorageUnavailable if the database cannot be reached or stays locked; the fate of the commit is then
        unknown. What the function raises rolls back and comes through.
        """

    @abstractmethod
    async def read(self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` on a snapshot; raises StorageUnavailable."""

    @abstractmethod
    async def close(self) -> None:
        """Let running functions end, then close every connection."""


def open_database(url: str) -> Database:
    """The database at a SQLAlchemy URL; it connects on first use. Raises ConfigurationError for other databases."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ConfigurationError("DATABASE_URL is no address: write postgresql://… or sqlite:///file") from None
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise ConfigurationError("DATABASE_URL: an in-memory SQLite cannot be shared by gateway and workers")
        return SqliteDatabase(Path(parsed.database))
    if parsed.get_backend_name() == "postgresql":
        return PostgresDatabase(parsed.set(drivername="postgresql+psycopg"))
    raise ConfigurationError(f"DATABASE_URL: {parsed.get_backend_name()} is not supported; use postgresql or sqlite")


class PostgresDatabase(Database):
    """PostgreSQL through psycopg's asyncio connections; belongs to the event loop that uses it first."""

    dialect = "postgresql"

    def __init__(self, url: str | URL, *, pool_size: int = 8) -> None:
        parsed = make_url(url)
        # The ping costs a tenth of a millisecond and spares the first request after a server restart its error.
        self._engine = create_async_engine(
            parsed,
            connect_args={name: value for name, value in POSTGRES_LIMITS.items() if name not in parsed.query},
            pool_size=pool_size,
            max_overflow=8,
            pool_timeout=10,
            pool_pre_ping=True,
            pool_use_lifo=True,
            hide_parameters=True,  # they hold what people wrote, and errors are logged
        )

    async def write(self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        tries = ROLLED_BACK_TRIES
        while True:
            try:
                async with self._engine.begin() as connection:
                    try:
                        return await connection.run_sync(function, *args, **kwargs)
                    except CommitAndRunAgain:
                        continue
            except RunAgain:
                tries -= 1
                if tries == 0:
                    raise StorageUnavailable("the rows kept changing under the transaction") from None
            except DBAPIError as error:
                tries -= 1
                if not _was_rolled_back(error) or tries == 0:
                    raise _translated(error) from error
            except (OSError, PoolTimeout) as error:
                raise StorageUnavailable(f"the database cannot be reached: {error}") from error

    async def read(self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            async with self._engine.connect() as connection:
                return await connection.run_sync(function, *args, **kwargs)
        except DBAPIError as error:
            raise _translated(error) from error
        except (OSError, PoolTimeout) as error:
            raise StorageUnavailable(f"the database cannot be reached: {error}") from error

    async def close(self) -> None:
        await self._engine.dispose()


class SqliteDatabase(Database):
    """A SQLite file: one writer thread, a few readers, WAL.

    `synchronous=FULL` costs a fraction of a millisecond a commit; NORMAL would lose accepted jobs at a power cut.
    """

    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        if sqlite3.sqlite_version_info < SQLITE_OLDEST:
            raise ConfigurationError(
                f"this Python brings SQLite {sqlite3.sqlite_version}, which is too old: "
                "use another Python, or PostgreSQL by DATABASE_URL"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"DATABASE_URL: the folder {path.parent} cannot be made: {error.strerror}"
            ) from None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")
        self._write_engine = _sqlite_engine(path, busy_timeout_s=0)
        # Readers wait only while another process checkpoints or recovers the log.
        self._readers = ThreadPoolExecutor(SQLITE_READERS, thread_name_prefix="sqlite-reader")
        self._idle_engines = [_sqlite_engine(path, busy_timeout_s=5) for _ in range(SQLITE_READERS)]

    async def write(self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._writer, lambda: self._write(function, args, kwargs)
        )

    async def read(self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, lambda: self._read(function, args, kwargs)
        )

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _write(self, function: Callable[..., T], args: Any, kwargs: Any) -> T:
        try:
            while True:
                with self._write_engine.begin() as connection:
                    _begin(connection, "BEGIN IMMEDIATE")
                    try:
                        return function(connection, *args, **kwargs)
                    except CommitAndRunAgain:
                        continue
        except RunAgain:  # pragma: no cover - no other writer can change rows under a SQLite transaction
            raise StorageUnavailable("the rows kept changing under the transaction") from None
        except DBAPIError as error:
            raise _translated(error) from error

    def _read(self, function: Callable[..., T], args: Any, kwargs: Any) -> T:
        # There are as many engines as reader threads, so one is always idle.
        engine = self._idle_engines.pop()
        try:
            with engine.connect() as connection:
                _begin(connection, "BEGIN")
                return function(connection, *args, **kwargs)
        except DBAPIError as error:
            raise _translated(error) from error
        finally:
            self._idle_engines.append(engine)

    def _close(self) -> None:
        self._writer.shutdown()
        self._readers.shutdown()
        for engine in (*self._idle_engines, self._write_engine):
            engine.dispose()


def _sqlite_engine(path: Path, *, busy_timeout_s: float) -> Engine:
    """An engine of one connection, on which nothing begins a transaction but `_begin`."""

    def connect() -> sqlite3.Connection:
        # isolation_level None: the driver begins nothing by itself. Each engine is used by one thread at a time.
        connection = sqlite3.connect(path, timeout=SQLITE_BUSY_S, isolation_level=None, check_same_thread=False)
        # Two who give a new file its log at once: one of them is told "locked", whatever its timeout.
        _insist(lambda: connection.execute("PRAGMA journal_mode=WAL"))
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA busy_timeout={int(busy_timeout_s * 1000)}")
        return connection

    return create_engine("sqlite://", creator=connect, poolclass=StaticPool, hide_parameters=True)


def _begin(connection: Connection, statement: str) -> None:
    """Begin a transaction, waiting for other writers; SQLAlchemy's own event for it would cost at every statement."""
    _insist(lambda: connection.exec_driver_sql(statement))


def _insist(act: Callable[[], object]) -> None:
    """Do it as soon as no other process is in the way, within SQLITE_BUSY_S."""
    give_up = time.monotonic() + SQLITE_BUSY_S
    while True:
        try:
            act()
        except (sqlite3.OperationalError, OperationalError) as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(random.uniform(*SQLITE_NAP_S))  # noqa: S311 - spreads writers, keeps no secret
        else:
            return


def _was_rolled_back(error: DBAPIError) -> bool:
    return getattr(error.orig, "sqlstate", None) in ROLLED_BACK_STATES


def _translated(error: DBAPIError) -> Exception:
    """A database that cannot serve is StorageUnavailable; anything else is a fault of ours and comes through."""
    if isinstance(error, IntegrityError):
        return error
    read_only = getattr(error.orig, "sqlstate", None) == READ_ONLY_STATE
    if read_only or isinstance(error, (OperationalError, InterfaceError)) or error.connection_invalidated:
        return StorageUnavailable(f"the database does not answer: {error.orig}")
    return error
