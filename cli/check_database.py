"""Is the database there, and is it as this chatmill needs it?"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from cli.check import TIMEOUT_S, Check, without_password
from schemas.errors import ConfigurationError, StorageUnavailable
from storage.database import open_database
from storage.migrate import current_revision, newest_revision

if TYPE_CHECKING:
    from schemas.settings import Settings

NAME = "database"
MIGRATE = "run `chatmill migrate`"


async def check_database(settings: Settings) -> list[Check]:
    """Its address, kind and version, and whether its schema is the newest one."""
    try:
        missing = missing_file(settings.sqlalchemy_url)
        if missing is not None:
            return [Check.wrong(NAME, f"there is no file {missing}", f"{MIGRATE}, or `chatmill up`")]
        database = open_database(settings.sqlalchemy_url)
    except (ArgumentError, ConfigurationError) as error:
        return [Check.wrong(NAME, f"DATABASE_URL is wrong: {error}", "correct DATABASE_URL")]
    try:
        async with asyncio.timeout(TIMEOUT_S):
            version = await database.read(_version)
            revision = await current_revision(database)
    except (StorageUnavailable, SQLAlchemyError, OSError, TimeoutError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return [
            Check.wrong(NAME, f"{_shown(settings)} does not answer ({reason})", "start it, or correct DATABASE_URL")
        ]
    finally:
        await database.close()
    return [Check.ok(NAME, f"{_shown(settings)} is {version}"), _migrations(revision)]


def missing_file(url: str) -> Path | None:
    """The SQLite file that is not there; to open it would make it."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    file = Path(parsed.database)
    return None if file.exists() else file


def _version(connection: Connection) -> str:
    if connection.dialect.name == "sqlite":
        return f"SQLite {connection.scalar(text('SELECT sqlite_version()'))}"
    return f"PostgreSQL {connection.scalar(text('SHOW server_version'))}"


def _migrations(revision: str | None) -> Check:
    name, newest = f"{NAME} migrations", newest_revision()
    if revision == newest:
        return Check.ok(name, f"at {revision}, the newest")
    return Check.wrong(name, f"at {revision or 'none'} instead of {newest}", MIGRATE)


def _shown(settings: Settings) -> str:
    return without_password(settings.sqlalchemy_url)
