"""A database that loses replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from schemas.errors import StorageUnavailable
from storage.database import Database, open_database

P = ParamSpec("P")
T = TypeVar("T")

BEFORE, AFTER = "before it happened", "after it happened"
#: The transition that ends an attempt, whichever it is.
ENDING = "<lambda>"


class Flaky(Database):
    """A database that loses replies: `lose` holds (function, when) for the next calls of these functions."""

    def __init__(self, url: str, *lose: tuple[str, str]) -> None:
        self.real = open_database(url)
        self.dialect = self.real.dialect
        self.lose = list(lose)

    async def write(self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        when = self._plan(function.__name__)
        if when == BEFORE:
            raise StorageUnavailable("the database does not answer")
        result = await self.real.write(function, *args, **kwargs)
        if when == AFTER:
            raise StorageUnavailable("the database does not answer any more")
        return result

    async def read(self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._plan(function.__name__):
            raise StorageUnavailable("the database does not answer")
        return await self.real.read(function, *args, **kwargs)

    async def close(self) -> None:
        await self.real.close()

    def _plan(self, name: str) -> str:
        for place, (what, when) in enumerate(self.lose):
            if what == name:
                del self.lose[place]
                return when
        return ""
