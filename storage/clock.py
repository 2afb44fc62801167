"""The database's clock, as microseconds since 1970: the only clock that decides anything about a job."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

MICROSECONDS = 1_000_000


def to_us(seconds: float) -> int:
    """Seconds as whole microseconds."""
    return round(seconds * MICROSECONDS)


class now_us(FunctionElement[int]):  # noqa: N801 - it reads as the SQL function it is
    """The time of the current statement.

    On PostgreSQL `statement_timestamp()`: `clock_timestamp()` is volatile, so no index could be used with it.
    """

    type = BigInteger()
    inherit_cache = True


@compiles(now_us, "postgresql")
def _now_postgresql(element: now_us, compiler: Any, **options: Any) -> str:
    return "CAST(extract(epoch FROM statement_timestamp()) * 1000000 AS bigint)"


@compiles(now_us, "sqlite")
def _now_sqlite(element: now_us, compiler: Any, **options: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"


class current_xid(FunctionElement[int]):  # noqa: N801
    """The id of the current transaction on PostgreSQL, 0 on SQLite, where commits are in order anyway."""

    type = BigInteger()
    inherit_cache = True


@compiles(current_xid, "postgresql")
def _xid_postgresql(element: current_xid, compiler: Any, **options: Any) -> str:
    return "CAST(CAST(pg_current_xact_id() AS text) AS bigint)"


@compiles(current_xid, "sqlite")
def _xid_sqlite(element: current_xid, compiler: Any, **options: Any) -> str:
    return "0"
