"""Following jobs: one pub/sub connection for all clients of the process, and a second look at whoever hears nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Self

import structlog
from redis.exceptions import RedisError

from gateway.follower import START, Follower
from gateway.job_reader import JobReader
from gateway.subscriptions import Subscriptions
from schemas.errors import StorageUnavailable
from schemas.job_event import EventId
from storage.database import Database
from storage.event_log import EventLog, parse_published
from storage.jobs.views import ENDED_STATUSES, job_states
from workers.cancelling import cancel_all
from workers.metrics import Metrics

#: Readers of logs at once: a reconnect makes every follower read.
TURNS = 32
#: Jobs that are looked after with one question to Redis and one to SQL.
CHECK_BATCH = 500
CHECK_TIMEOUT_S = 2.0
#: How many times in `idle_check_s` the hub looks who has been idle for that long.
CHECKS = 4

logger = structlog.get_logger(__name__)


class EventHub:
    """Open it as an async context; `follow` jobs; `stop` ends all streams.

    A follower that has heard nothing for `idle_check_s` seconds is checked against the end of its log and its job's
    status in SQL, so that it ends rightly even without Redis.
    """

    def __init__(
        self, log: EventLog, database: Database, *, idle_check_s: float, metrics: Metrics | None = None
    ) -> None:
        self._metrics = metrics or Metrics()
        self._log = log
        self._database = database
        self._idle_check_s = idle_check_s
        self._turns = asyncio.Semaphore(TURNS)
        self._followers: dict[bytes, set[Follower]] = {}
        self._subscriptions = Subscriptions(log.redis, on_subscribed=self._catch_up, on_message=self._hand_on)
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._subscriptions.run(), name="subscriptions"),
            asyncio.create_task(self._look_after_idle(), name="idle-check"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        await cancel_all(self._tasks)

    def follow(self, tenant: str, job_id: str, after: EventId = START) -> Follower:
        """A follower of the job's events behind `after`; whoever asks lets it go, by using it as a context.

        Whoever asks has made sure, or will, that the job is the tenant's.
        """
        reader = JobReader(self._log, self._database, self._turns, tenant, job_id)
        follower = Follower(reader, after, self._let_go, self._metrics.gaps_refilled.inc)
        channel = self._channel(job_id)
        self._followers.setdefault(channel, set()).add(follower)
        self._subscriptions.add(channel)
        if self._stopped:
            follower.close()
        elif self._subscriptions.confirmed(channel) or not self._subscriptions.connected:
            follower.fall_behind()
        return follower

    def stop(self) -> None:
        """End every stream, now and from now on."""
        self._stopped = True
        for follower in self._all():
            follower.close()

    @property
    def following(self) -> int:
        """How many clients follow a job at the moment."""
        return sum(len(followers) for followers in self._followers.values())

    def _let_go(self, follower: Follower) -> None:
        channel = self._channel(follower.job_id)
        followers = self._followers[channel]
        followers.discard(follower)
        if not followers:
            del self._followers[channel]
            self._subscriptions.remove(channel)

    def _channel(self, job_id: str) -> bytes:
        return self._log.key(job_id).encode()

    def _all(self) -> list[Follower]:
        return [follower for followers in self._followers.values() for follower in followers]

    def _catch_up(self, channel: bytes) -> None:
        """The channel is subscribed, perhaps again: what was published before may have been missed."""
        for follower in self._followers.get(channel, ()):
            follower.fall_behind()

    def _hand_on(self, channel: bytes, data: bytes) -> None:
        try:
            published = parse_published(data)
        except ValueError:
            logger.warning("ignored what is not an event", channel=channel.decode(errors="replace"))
            return
        for follower in self._followers.get(channel, ()):
            follower.offer(published)

    async def _look_after_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._idle_check_s / CHECKS)
            idle = [follower for follower in self._all() if follower.idle_since(loop.time() - self._idle_check_s)]
            for start in range(0, len(idle), CHECK_BATCH):
                try:
                    await self._check(idle[start : start + CHECK_BATCH])
                except Exception:
                    # Nothing may end this loop: without it a stream could wait for ever.
                    logger.exception("the check of idle streams failed")

    async def _check(self, idle: Sequence[Follower]) -> None:
        """Wake the followers whose log has grown or whose job has moved on, has ended or is gone."""
        job_ids = list({follower.job_id for follower in idle})
        last_ids, states = await asyncio.gather(self._last_ids(job_ids), self._states(job_ids))
        now = asyncio.get_running_loop().time()
        for follower in idle:
            follower.active_at = now
            status, epoch = (states or {}).get(follower.job_id, _GONE)
            follower.known_epoch = max(follower.known_epoch, epoch)
            if states is not None and status in _OVER:
                follower.end()
            elif (
                follower.position.epoch < follower.known_epoch
                or last_ids.get(follower.job_id, START) > follower.position
            ):
                follower.fall_behind()

    async def _last_ids(self, job_ids: Sequence[str]) -> dict[str, EventId]:
        """The ends of the logs that have one; none if Redis does not answer."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                found = await self._log.last_ids(job_ids)
        except (RedisError, OSError, TimeoutError):
            return {}
        return {job_id: last for job_id, last in zip(job_ids, found, strict=True) if last is not None}

    async def _states(self, job_ids: Sequence[str]) -> dict[str, tuple[str, int]] | None:
        """(status, epoch) of every job there is; None if SQL does not answer."""
        with contextlib.suppress(StorageUnavailable):
            return await self._database.read(job_states, job_ids)
        logger.warning("idle streams are not checked: the database does not answer")
        return None


_GONE = ("gone", 0)
_OVER = ENDED_STATUSES | {"gone"}
