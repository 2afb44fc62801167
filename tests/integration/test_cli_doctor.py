"""What `doctor` finds out about real servers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from cli.check import Check
from cli.check_clocks import check_clocks
from cli.check_database import check_database
from cli.check_redis import check_redis
from cli.valkey import Valkey
from schemas.settings import Settings
from storage.database import open_database
from storage.migrate import migrate


def settings(**values: Any) -> Settings:
    return Settings.model_validate(values)


def statuses(found: list[Check]) -> dict[str, str]:
    return {check.name: check.status for check in found}


async def test_a_redis_as_up_starts_it_is_ok(own_valkey: Valkey) -> None:
    found = await check_redis(settings(redis_url=own_valkey.url))
    assert statuses(found) == {"redis": "ok", "redis persistence": "ok", "redis memory": "ok"}
    assert "Valkey" in found[0].message


@pytest.mark.parametrize(("limit", "status"), [("0", "warning"), ("100mb", "wrong")])
async def test_a_redis_that_forgets_is_found_out(limit: str, status: str, own_valkey: Valkey) -> None:
    client = Redis.from_url(own_valkey.url)
    await client.config_set("appendonly", "no")
    await client.config_set("maxmemory-policy", "allkeys-lru")
    await client.config_set("maxmemory", limit)
    await client.aclose()
    found = await check_redis(settings(redis_url=own_valkey.url))
    assert statuses(found) == {"redis": "ok", "redis persistence": "warning", "redis memory": status}
    assert [check.remedy for check in found[1:]] != ["", ""]


async def test_a_redis_that_is_away_or_refuses_the_password_is_wrong(own_valkey: Valkey) -> None:
    (refused,) = await check_redis(settings(redis_url=own_valkey.url.replace("@", "x@")))
    await own_valkey.stop()
    (away,) = await check_redis(settings(redis_url=own_valkey.url))
    assert (refused.status, away.status) == ("wrong", "wrong")
    password = urlsplit(own_valkey.url).password
    assert password
    assert password not in refused.message + away.message


async def test_a_database_must_be_there_and_at_the_newest_revision(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chatmill.db'}"
    (missing,) = await check_database(settings(database_url=url))
    assert (missing.status, "chatmill migrate" in missing.remedy) == ("wrong", True)
    assert os.listdir(tmp_path) == []  # looking made nothing
    (tmp_path / "chatmill.db").touch()
    found = await check_database(settings(database_url=url))
    assert statuses(found) == {"database": "ok", "database migrations": "wrong"}
    database = open_database(url)
    await migrate(database)
    await database.close()
    assert statuses(await check_database(settings(database_url=url)))["database migrations"] == "ok"


async def test_postgresql_is_known_by_its_version(postgres_url: str) -> None:
    found = await check_database(settings(database_url=postgres_url))
    assert "is PostgreSQL 1" in found[0].message
    assert statuses(found) == {"database": "ok", "database migrations": "wrong"}


@pytest.mark.parametrize("url", ["postgresql://me:secret@127.0.0.1:1/x", "mysql://me:secret@host/x", "nonsense"])
async def test_a_database_that_is_away_or_of_another_kind_is_wrong(url: str) -> None:
    (check,) = await check_database(settings(database_url=url))
    assert check.status == "wrong"
    assert "secret" not in check.message + check.remedy


async def test_clocks_are_compared_where_there_are_any(own_valkey: Valkey, postgres_url: str, tmp_path: Path) -> None:
    both = await check_clocks(settings(redis_url=own_valkey.url, database_url=postgres_url))
    assert statuses(both) == {"database clock": "ok", "redis clock": "ok"}
    nobody = settings(redis_url="redis://127.0.0.1:1", database_url=f"sqlite:///{tmp_path / 'none.db'}")
    assert await check_clocks(nobody) == []
    assert "none.db" not in os.listdir(tmp_path)
