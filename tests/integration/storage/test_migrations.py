"""Migrations: the one way to a schema, from several processes at once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import Connection, inspect, text

from storage.database import Database, open_database
from storage.migrate import current_revision, migrate, newest_revision, upgrade
from storage.tables import metadata

ROOT = Path(__file__).parents[3]
PROGRAM = """
import asyncio, sys
from storage.database import open_database
from storage.migrate import migrate

async def main():
    database = open_database(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    print(await migrate(database), flush=True)
    await database.close()

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a database without a table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'folder' / 'chatmill.db'}"
    else:
        yield request.getfixturevalue("postgres_url")


async def test_several_processes_may_migrate_an_empty_database_at_once(empty_url: str) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, empty_url),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        for _ in range(5)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    outcomes = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [(out, err) for out, err in outcomes] == [(f"{newest_revision()}\n".encode(), b"")] * 5
    assert [process.returncode for process in processes] == [0] * 5
    database = open_database(empty_url)
    assert await current_revision(database) == newest_revision()
    await database.close()


async def test_the_migrations_make_what_the_tables_say(database: Database) -> None:
    def differences(connection: Connection) -> list[object]:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, metadata))

    assert await database.read(differences) == []


async def test_the_partial_indexes_are_made_as_the_tables_say(database: Database) -> None:
    """Alembic does not compare their conditions."""
    expected = {
        index.name: str(index.dialect_options[database.dialect]["where"])
        for table in metadata.tables.values()
        for index in table.indexes
        if index.dialect_options[database.dialect]["where"] is not None
    }
    assert len(expected) == 12
    found = await database.read(_conditions)
    assert {name: _squeezed(condition) for name, condition in found.items()} == {
        name: _squeezed(condition) for name, condition in expected.items()
    }


def _conditions(connection: Connection) -> dict[str, str]:
    if connection.dialect.name == "sqlite":
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE %'"
        return {name: sql.split(" WHERE ")[1] for name, sql in connection.execute(text(query))}
    query = (
        "SELECT relname, pg_get_expr(indpred, indrelid) AS condition "
        "FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
        "WHERE indpred IS NOT NULL AND relname LIKE 'ix_%'"
    )
    return {row.relname: row.condition for row in connection.execute(text(query))}


def _squeezed(condition: str) -> str:
    """Without what PostgreSQL adds when it says a condition again."""
    for added in ("::text[]", "::text", "::character varying", "(", ")", " "):
        condition = condition.replace(added, "")
    return condition.replace("=ANYARRAY[", "IN").replace("]", "")


async def test_a_second_run_changes_nothing(empty_url: str) -> None:
    database = open_database(empty_url)
    assert await current_revision(database) is None
    assert await migrate(database) == newest_revision()

    def schema(connection: Connection) -> object:
        found = inspect(connection)
        return {
            name: (found.get_columns(name), [index["name"] for index in found.get_indexes(name)])
            for name in sorted(found.get_table_names())
        }

    before = str(await database.read(schema))
    assert await migrate(database) == newest_revision()
    assert str(await database.read(schema)) == before
    await database.close()


async def test_a_migration_that_fails_leaves_nothing(empty_url: str) -> None:
    database = open_database(empty_url)

    def upgrade_and_break(connection: Connection) -> None:
        upgrade(connection)
        raise KeyError

    with pytest.raises(KeyError):
        await database.write(upgrade_and_break)
    assert await current_revision(database) is None
    assert await database.read(lambda connection: inspect(connection).get_table_names()) == []
    assert await migrate(database) == newest_revision()
    await database.close()


async def test_a_database_of_a_newer_chatmill_is_left_alone(empty_url: str) -> None:
    database = open_database(empty_url)
    await migrate(database)
    await database.write(lambda connection: connection.execute(text("UPDATE alembic_version SET version_num = '9999'")))
    with pytest.raises(CommandError, match="9999"):
        await migrate(database)
    assert await current_revision(database) == "9999"
    await database.close()
