"""An event log and a database that fail on purpose, at the place a test chooses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import orjson
from redis.exceptions import ConnectionError as RedisConnectionError
from sqlalchemy import Connection

from schemas.errors import StorageUnavailable
from schemas.fold import Fold
from schemas.job_event import EventId
from storage.database import Database
from storage.event_log import Append, Batch, EventLog

P = ParamSpec("P")
T = TypeVar("T")

#: What may happen to one call of the log or the database.
OK, LOST_BEFORE, LOST_AFTER = "ok", "lost before it was done", "lost after it was done"


class FakeLog:
    """The rules of `append.lua` in Python. `faults` says what becomes of each round trip, `ok` once it is used up."""

    def __init__(self, faults: Iterable[str] = ()) -> None:
        self.entries: dict[str, list[tuple[EventId, bytes]]] = {}
        self.faults = iter(faults)
        self.sent: list[list[Batch]] = []
        self.after_append: Callable[[Batch, Append], None] = lambda batch, result: None
        #: Awaited inside each round trip.
        self.pause: Callable[[], Any] = lambda: asyncio.sleep(0)

    @property
    def log(self) -> EventLog:
        return cast(EventLog, self)

    async def append(self, batch: Batch) -> Append:
        (result,) = await self.append_all([batch])
        assert isinstance(result, Append)
        return result

    async def append_all(self, batches: Sequence[Batch]) -> list[Append | Exception]:
        self.sent.append(list(batches))
        fault = next(self.faults, OK)
        await self.pause()
        if fault == LOST_BEFORE:
            raise RedisConnectionError("the connection was refused")
        results: list[Append | Exception] = [self._append(batch) for batch in batches]
        await self.pause()
        if fault == LOST_AFTER:
            raise RedisConnectionError("the connection was cut")
        return results

    def _append(self, batch: Batch) -> Append:
        entries = self.entries.setdefault(batch.job_id, [])
        result = self._decide(entries, batch)
        if result is None:
            entries += [
                (EventId(batch.epoch, batch.base + place), event) for place, event in enumerate(batch.events, start=1)
            ]
            result = Append.OK
        self.after_append(batch, result)
        return result

    @staticmethod
    def _decide(entries: list[tuple[EventId, bytes]], batch: Batch) -> Append | None:
        last = entries[-1][0] if entries else EventId(-1, 0)
        if last.epoch > batch.epoch:
            return Append.FENCED
        seq = last.seq if last.epoch == batch.epoch else 0
        if seq == batch.base + len(batch.events) or (batch.base == 0 and seq >= 1):
            return Append.OK
        return Append.LOST if seq != batch.base else None

    def flush(self) -> None:
        """Lose everything, as a restart without files does."""
        self.entries.clear()

    def fold(self, job_id: str) -> Fold:
        """What a client that reads the log from its start shows."""
        fold = Fold()
        for event_id, event in self.entries.get(job_id, []):
            fold.apply(event_id, orjson.loads(event))
        return fold


class FakeDatabase(Database):
    """Calls the given answers in place of functions of a connection, and loses replies as `faults` says."""

    dialect = "fake"

    def __init__(
        self, write: Callable[..., Any], read: Callable[..., Any] | None = None, faults: Iterable[str] = ()
    ) -> None:
        self._write = write
        self._read = read or (lambda *arguments: None)
        self.faults = iter(faults)
        self.read_faults: Iterable[str] = iter(())
        self.writes: list[tuple[Any, ...]] = []
        self.reads: list[tuple[Any, ...]] = []

    async def write(self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.writes.append((function, *args))
        fault = next(self.faults, OK)
        await asyncio.sleep(0)
        if fault == LOST_BEFORE:
            raise StorageUnavailable("the database does not answer")
        result: T = self._write(function, *args, **kwargs)
        if fault == LOST_AFTER:
            raise StorageUnavailable("the database does not answer any more")
        return result

    async def read(self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        self.reads.append((function, *args))
        await asyncio.sleep(0)
        if next(iter(self.read_faults), OK) != OK:
            raise StorageUnavailable("the database does not answer")
        found: Any = self._read(*args, **kwargs)
        result: T = found
        return result

    async def close(self) -> None:
        pass
