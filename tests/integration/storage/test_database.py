"""Running functions in transactions, on both databases."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import Connection, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.util import await_only

from cli.ports import LOOPBACK, free_port
from schemas.errors import ConfigurationError, StorageUnavailable
from storage import database as database_module
from storage.clock import now_us
from storage.database import (
    CommitAndRunAgain,
    Database,
    PostgresDatabase,
    RunAgain,
    SqliteDatabase,
    open_database,
)
from storage.jobs.statements import read_clock
from storage.tables import tenants
from tests.integration.storage.acts import rows
from tests.integration.storage.conftest import Shared


def add_tenant(connection: Connection, name: str) -> str:
    connection.execute(insert(tenants).values(id=name, created_at=now_us()))
    return name


async def test_what_a_function_returns_comes_back_and_is_committed(database: Database) -> None:
    assert await database.write(add_tenant, "a") == "a"
    assert [row["id"] for row in await rows(database, tenants)] == ["a"]


async def test_what_a_function_raises_comes_through_and_nothing_is_kept(database: Database) -> None:
    def break_off(connection: Connection) -> None:
        add_tenant(connection, "a")
        raise KeyError("a")

    with pytest.raises(KeyError):
        await database.write(break_off)
    assert await rows(database, tenants) == []


async def test_a_read_keeps_nothing(database: Database) -> None:
    await database.read(add_tenant, "a")
    assert await rows(database, tenants) == []


async def test_a_broken_constraint_is_a_fault_of_ours(database: Database) -> None:
    await database.write(add_tenant, "a")
    with pytest.raises(IntegrityError):
        await database.write(add_tenant, "a")
    assert await database.write(add_tenant, "b") == "b", "the connection is as good as before"


async def test_writes_at_once_all_arrive(database: Database) -> None:
    await asyncio.gather(*(database.write(add_tenant, f"t{number}") for number in range(60)))
    assert len(await rows(database, tenants)) == 60


async def test_reads_go_on_beside_a_write(database: Database, database_url: str) -> None:
    entered, leave = threading.Event(), threading.Event()
    other = open_database(database_url)

    def write_slowly(connection: Connection) -> None:
        add_tenant(connection, "slow")
        entered.set()
        leave.wait(10)

    # In a thread of its own: on PostgreSQL the function would hold up this event loop.
    writer = threading.Thread(target=lambda: asyncio.run(_write_and_close(other, write_slowly)))
    writer.start()
    try:
        await asyncio.to_thread(entered.wait, 10)
        assert await asyncio.gather(*(rows(database, tenants) for _ in range(4))) == [[]] * 4
    finally:
        leave.set()
        await asyncio.to_thread(writer.join)
    assert [row["id"] for row in await rows(database, tenants)] == ["slow"]


async def _write_and_close(database: Database, function: object) -> None:
    await database.write(function)  # type: ignore[arg-type]  # a function of a Connection
    await database.close()


async def test_the_clock_is_the_databases_in_microseconds(database: Database) -> None:
    first, second = await database.read(read_clock), await database.read(read_clock)
    assert 1_700_000_000_000_000 < first <= second < 5_000_000_000_000_000


async def test_the_clock_stands_still_within_a_statement(database: Database) -> None:
    query = select((now_us() - now_us()).label("passed"))
    assert await database.read(lambda connection: connection.execute(query).scalar_one()) == 0


async def test_a_transaction_that_has_to_take_other_locks_is_run_again(postgres_database: Database) -> None:
    tries = []

    def insist(connection: Connection) -> int:
        tries.append(add_tenant(connection, "a"))
        if len(tries) < 3:
            raise RunAgain
        return len(tries)

    assert await postgres_database.write(insist) == 3
    assert len(await rows(postgres_database, tenants)) == 1


async def test_a_function_may_commit_its_part_and_go_on_without_its_locks(database: Database) -> None:
    done: list[str] = []

    def part_by_part(connection: Connection) -> int:
        done.append(add_tenant(connection, f"t{len(done)}"))
        if len(done) < 8:
            raise CommitAndRunAgain
        return len(done)

    assert await database.write(part_by_part) == 8
    assert len(await rows(database, tenants)) == 8


async def test_rows_that_keep_changing_are_given_up(postgres_database: Database) -> None:
    def never(connection: Connection) -> None:
        raise RunAgain

    with pytest.raises(StorageUnavailable):
        await postgres_database.write(never)


async def test_a_deadlock_is_run_again_and_nobody_hears_of_it(
    postgres_database: Database, shared_postgres: Shared
) -> None:
    await postgres_database.write(add_tenant, "a")
    await postgres_database.write(add_tenant, "b")
    other = open_database(shared_postgres.url)
    both = asyncio.Barrier(2)
    tries = {"a": 0, "b": 0}

    def lock_both(connection: Connection, first: str, second: str) -> None:
        tries[first] += 1
        connection.execute(text("SET LOCAL deadlock_timeout = '20ms'"))
        connection.execute(select(tenants).where(tenants.c.id == first).with_for_update())
        if tries[first] == 1:
            await_only(both.wait())
        connection.execute(select(tenants).where(tenants.c.id == second).with_for_update())

    await asyncio.gather(postgres_database.write(lock_both, "a", "b"), other.write(lock_both, "b", "a"))
    await other.close()
    assert sorted(tries.values()) == [1, 2]


async def test_connections_that_the_server_closed_are_replaced_unseen(postgres_database: Database) -> None:
    await asyncio.gather(*(postgres_database.read(read_clock) for _ in range(4)))

    def end_the_others(connection: Connection) -> None:
        others = "pid <> pg_backend_pid() AND datname = current_database()"
        connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))

    await postgres_database.write(end_the_others)
    for _ in range(4):
        await asyncio.gather(*(postgres_database.read(read_clock) for _ in range(4)))


async def test_a_server_that_ends_the_connection_midway_is_unavailable(postgres_database: Database) -> None:
    def end_itself(connection: Connection) -> None:
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(StorageUnavailable):
        await postgres_database.write(end_itself)
    assert await postgres_database.write(add_tenant, "a") == "a"


async def test_a_server_that_is_read_only_for_a_while_is_unavailable(postgres_database: Database) -> None:
    def write_in_vain(connection: Connection) -> None:
        connection.execute(text("SET TRANSACTION READ ONLY"))
        add_tenant(connection, "a")

    with pytest.raises(StorageUnavailable):
        await postgres_database.write(write_in_vain)


async def test_an_error_tells_nobodys_words(database: Database) -> None:
    def misspell(connection: Connection) -> None:
        connection.execute(text("SELECT :words FROM nowhere"), {"words": "a secret"})

    with pytest.raises(Exception, match="nowhere") as error:
        await database.write(misspell)
    assert "a secret" not in str(error.value)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    database = open_database(f"postgresql+psycopg://nobody@{LOOPBACK}:{free_port()}/none")
    for call in (database.write, database.read):
        with pytest.raises(StorageUnavailable):
            await call(read_clock)
    await database.close()


async def test_a_pool_that_is_used_up_is_unavailable(shared_postgres: Shared) -> None:
    database = PostgresDatabase(shared_postgres.url, pool_size=1)
    pool = database._engine.sync_engine.pool
    pool._max_overflow, pool._timeout = 0, 0.05  # type: ignore[attr-defined]  # no test waits ten seconds
    held, let_go = asyncio.Event(), asyncio.Event()

    def hold(connection: Connection) -> None:
        held.set()
        await_only(let_go.wait())

    holder = asyncio.create_task(database.write(hold))
    await held.wait()
    for call in (database.write, database.read):
        with pytest.raises(StorageUnavailable):
            await call(read_clock)
    let_go.set()
    await holder
    await database.close()


@pytest_asyncio.fixture
async def sqlite_file(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    database = SqliteDatabase(tmp_path / "own.db")
    yield database
    await database.close()


async def test_sqlite_keeps_what_was_committed_at_a_power_cut(sqlite_file: SqliteDatabase) -> None:
    def pragmas(connection: Connection) -> list[object]:
        return [connection.execute(text(f"PRAGMA {name}")).scalar_one() for name in ("journal_mode", "synchronous")]

    assert await sqlite_file.write(pragmas) == ["wal", 2]
    assert await sqlite_file.read(pragmas) == ["wal", 2]


async def test_many_may_open_a_new_sqlite_file_at_once(tmp_path: Path) -> None:
    for number in range(15):
        crowd = [SqliteDatabase(tmp_path / f"{number}.db") for _ in range(4)]
        await asyncio.gather(*(one.write(read_clock) for one in crowd), *(one.read(read_clock) for one in crowd))
        await asyncio.gather(*(one.close() for one in crowd))


async def test_a_sqlite_that_stays_locked_is_unavailable(
    sqlite_file: SqliteDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "SQLITE_BUSY_S", 0.1)
    await sqlite_file.write(read_clock)
    with sqlite3.connect(tmp_path / "own.db", isolation_level=None) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageUnavailable):
            await sqlite_file.write(read_clock)
        assert await sqlite_file.read(read_clock) > 0, "readers are not locked out"
        holder.execute("ROLLBACK")
    holder.close()
    assert await sqlite_file.write(read_clock) > 0


async def test_a_sqlite_writer_waits_for_another_process(sqlite_file: SqliteDatabase, tmp_path: Path) -> None:
    await sqlite_file.write(read_clock)
    holder = sqlite3.connect(tmp_path / "own.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    asyncio.get_running_loop().call_later(0.1, lambda: holder.execute("ROLLBACK"))
    assert await sqlite_file.write(read_clock) > 0
    holder.close()


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "mysql://localhost/x", "sqlite://", "sqlite:///:memory:", "oracle://x"],
)
def test_other_databases_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="DATABASE_URL"):
        open_database(url)


def test_a_folder_that_cannot_be_made_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="file"):
        open_database(f"sqlite:///{tmp_path / 'file' / 'chatmill.db'}")


async def test_a_sqlite_file_that_is_a_folder_is_unavailable(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}")
    with pytest.raises(StorageUnavailable):
        await database.read(read_clock)
    await database.close()


async def test_any_driver_of_postgresql_means_ours() -> None:
    for name in ("postgresql", "postgresql+asyncpg", "postgresql+psycopg2"):
        database = open_database(f"{name}://user@{LOOPBACK}/x")
        assert isinstance(database, PostgresDatabase)
        assert database._engine.dialect.driver == "psycopg"
