"""Real Valkey servers for tests."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cli.valkey import Valkey
from tests.watchdog import watchdog


@asynccontextmanager
async def valkey_server(folder: Path, **options: str) -> AsyncIterator[Valkey]:
    """A server with its files in `folder`; `options` are lines of its configuration."""
    pidfile = folder / "valkey.pid"
    with watchdog(f"kill -KILL $(cat {shlex.quote(str(pidfile))})"):
        async with Valkey(folder, options={"pidfile": str(pidfile), **options}) as valkey:
            yield valkey


def unique_namespace() -> str:
    """A prefix for keys and channels that no other test has: pub/sub crosses the borders of Redis databases."""
    return f"t{secrets.token_hex(6)}"
