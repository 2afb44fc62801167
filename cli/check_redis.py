"""Is Redis there, and does it keep what it is given?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from redis.exceptions import AuthenticationError, RedisError

from cli.check import TIMEOUT_S, Check, without_password
from storage.redis_client import open_redis

if TYPE_CHECKING:
    from schemas.settings import Settings

NAME = "redis"
#: The first with BLMOVE, which workers wait with.
OLDEST_VERSION = (6, 2)


async def check_redis(settings: Settings) -> list[Check]:
    """Its address, version, persistence and what it does when its memory is full."""
    url = settings.redis_url.get_secret_value()
    shown = without_password(url)
    client = open_redis(url, socket_timeout=TIMEOUT_S)
    try:
        info: Mapping[str, Any] = await client.info()
    except AuthenticationError as error:
        return [Check.wrong(NAME, f"{shown} refuses the password ({error})", "correct REDIS_URL")]
    except (RedisError, OSError) as error:
        remedy = "start it, or correct REDIS_URL; `chatmill up` brings its own where REDIS_URL is not set"
        return [Check.wrong(NAME, f"{shown} does not answer ({error or type(error).__name__})", remedy)]
    finally:
        await client.aclose()
    return [_version(shown, info), _persistence(info), _memory(info)]


def _version(shown: str, info: Mapping[str, Any]) -> Check:
    # Valkey says the version of Redis it stands for beside its own.
    version = str(info.get("redis_version", "0"))
    own = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {version}"
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST_VERSION:
        return Check.wrong(NAME, f"{shown} is {own}", "use Redis 6.2 or newer, or Valkey")
    return Check.ok(NAME, f"{shown} is {own}")


def _persistence(info: Mapping[str, Any]) -> Check:
    name = f"{NAME} persistence"
    if info.get("aof_enabled"):
        if info.get("aof_last_write_status", "ok") != "ok":
            return Check.wrong(name, "its append-only file cannot be written", "make room on its disk; see its log")
        return Check.ok(name, "append-only file is on")
    return Check.warning(
        name,
        "append-only file is off: a restart loses event logs and queued rings (no job and no answer)",
        "set `appendonly yes` in its configuration",
    )


def _memory(info: Mapping[str, Any]) -> Check:
    name = f"{NAME} memory"
    policy = str(info.get("maxmemory_policy", "unknown"))
    limited = bool(info.get("maxmemory"))
    if policy == "noeviction":
        return Check.ok(name, "noeviction: nothing is thrown away when memory is full")
    found = f"maxmemory-policy is {policy}"
    remedy = "set `maxmemory-policy noeviction` in its configuration"
    if limited:
        return Check.wrong(name, f"{found}: it throws events and rings away when memory is full", remedy)
    return Check.warning(name, f"{found}, which does no harm as long as maxmemory is not set", remedy)
