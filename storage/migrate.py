"""Brings a database to the newest schema, safely from several processes at once."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from storage.database import Database

MIGRATIONS = Path(__file__).parent.parent / "migrations"
#: Any number, as long as every version of chatmill takes the same one.
_LOCK = 7_207_012_448


async def migrate(database: Database) -> str:
    """Bring the database to the newest revision and return it; waits for another process that is doing the same.

    Raises StorageUnavailable, and alembic's CommandError for a database of a newer chatmill.
    """
    return await database.write(upgrade)


async def current_revision(database: Database) -> str | None:
    """The revision the database is at; None if it is empty."""
    return await database.read(_current)


def newest_revision() -> str:
    """The revision this chatmill needs."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def upgrade(connection: Connection) -> str:
    """Run the missing migrations in the connection's transaction, under a lock held until it ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return newest_revision()


def _current(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config
