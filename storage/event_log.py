"""The event log of a job in Redis: a stream that keeps its events, and a channel of the same name that tells of them.

The log is the fast copy; the truth is SQL. All writing goes through one Lua script, `append.lua`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoScriptError

from schemas.job_event import EventId

_SCRIPT = (Path(__file__).parent / "append.lua").read_text(encoding="utf-8")
#: Events read from a log in one go: a slow reader then holds little of it in memory.
READ_COUNT = 500


class Append(Enum):
    """What became of an append."""

    #: Stored and published, now or by an earlier sending.
    OK = "OK"
    #: A newer epoch has begun: this writer has lost the job.
    FENCED = "FENCED"
    #: Entries this writer had acknowledged are gone: it must rebuild.
    LOST = "LOST"
    #: The epoch has its terminal event.
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that go into one log together; a transition's event travels alone, with `base` 0."""

    job_id: str
    epoch: int
    #: The seq this writer last had acknowledged in this epoch; 0 opens the epoch.
    base: int
    events: tuple[bytes, ...]
    terminal: bool = False


class LogEntry(NamedTuple):
    """One event as stored: its id, and the JSON that was encoded by the worker."""

    id: EventId
    event: bytes
    terminal: bool


class Published(NamedTuple):
    """One event as published; `previous` is the id before it in the log, by which a reader sees a hole."""

    id: EventId
    previous: EventId
    event: bytes


class EventLog:
    """Reads and appends the logs of jobs. `redis` must answer in bytes (decode_responses off)."""

    def __init__(self, redis: Redis, namespace: str, *, ttl_live_s: float, ttl_ended_s: float) -> None:
        self.redis = redis
        self._namespace = namespace
        self._ttl_live_ms = str(round(ttl_live_s * 1000))
        self._ttl_ended_ms = str(round(ttl_ended_s * 1000))
        self._append = redis.register_script(_SCRIPT)

    def key(self, job_id: str) -> str:
        """The name of the job's stream, which is the name of its channel too. The braces keep a cluster's slot."""
        return f"{self._namespace}:{{{job_id}}}:events"

    async def append(self, batch: Batch, also: Callable[[Pipeline], None] | None = None) -> Append:
        """Append one batch; raises redis.RedisError: its fate is then unknown, and it must be sent again as it is.

        `also` may add commands of its own to the same round trip, behind the append.
        """
        (result,) = await self.append_all([batch], also)
        if isinstance(result, Exception):
            raise result
        return result

    async def append_all(
        self, batches: Sequence[Batch], also: Callable[[Pipeline], None] | None = None
    ) -> list[Append | Exception]:
        """Append batches of different jobs in one round trip. An error that concerns one batch stands in its place.

        Raises redis.RedisError if the whole round trip failed; the fate of every batch is then unknown.
        """
        results = await self._send(batches, also)
        unsent = [place for place, result in enumerate(results) if isinstance(result, NoScriptError)]
        if unsent:
            # The server was restarted or its scripts were flushed, perhaps in the middle of the pipeline.
            await self.redis.script_load(_SCRIPT)
            for place, result in zip(unsent, await self._send([batches[place] for place in unsent]), strict=True):
                results[place] = result
        return [result if isinstance(result, Exception) else Append(result.decode()) for result in results]

    async def _send(self, batches: Sequence[Batch], also: Callable[[Pipeline], None] | None = None) -> list[Any]:
        pipeline: Pipeline = self.redis.pipeline(transaction=False)
        for batch in batches:
            pipeline.evalsha(
                self._append.sha,
                1,
                self.key(batch.job_id),
                batch.epoch,
                batch.base,
                self._ttl_ended_ms if batch.terminal else self._ttl_live_ms,
                int(batch.terminal),
                *batch.events,
            )
        if also is not None:
            also(pipeline)
        return list(await pipeline.execute(raise_on_error=False))[: len(batches)]

    async def read(self, job_id: str, after: EventId | None = None, count: int = READ_COUNT) -> list[LogEntry]:
        """The events after an id (or from the start), oldest first, at most `count`; raises redis.RedisError."""
        start = "-" if after is None else f"({after}"
        entries: Any = await self.redis.xrange(self.key(job_id), min=start, max="+", count=count)
        return [_entry(id_, fields) for id_, fields in entries]

    async def last(self, job_id: str) -> LogEntry | None:
        """The newest event of a log, None if there is none; raises redis.RedisError."""
        entries: Any = await self.redis.xrevrange(self.key(job_id), count=1)
        return _entry(*entries[0]) if entries else None

    async def last_ids(self, job_ids: Sequence[str]) -> list[EventId | None]:
        """The newest id of many logs in one round trip; raises redis.RedisError."""
        pipeline: Pipeline = self.redis.pipeline(transaction=False)
        for job_id in job_ids:
            pipeline.xrevrange(self.key(job_id), count=1)
        return [EventId.parse(found[0][0].decode()) if found else None for found in await pipeline.execute()]

    async def forget(self, job_ids: Sequence[str]) -> None:
        """Remove logs at once, for a session that is deleted; raises redis.RedisError."""
        if job_ids:
            await self.redis.delete(*(self.key(job_id) for job_id in job_ids))


def parse_published(data: bytes) -> Published:
    """Read what the script publishes: `<id> <previous id> <json>`."""
    id_, previous, event = data.split(b" ", 2)
    return Published(EventId.parse(id_.decode()), EventId.parse(previous.decode()), event)


def _entry(id_: bytes, fields: dict[bytes, bytes]) -> LogEntry:
    return LogEntry(EventId.parse(id_.decode()), fields[b"e"], b"t" in fields)
