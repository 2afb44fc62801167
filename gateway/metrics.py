"""`/metrics`, for Prometheus: what the processes count, and what lies in the database at the moment of the scrape."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.operation import Answer, Operation
from gateway.services import Services
from schemas.errors import StorageUnavailable
from schemas.heartbeat import FRESH_WITHIN_S
from storage.clock import MICROSECONDS
from storage.heartbeats import Heartbeats
from storage.overview import Standing, read_standing

#: Several scrapers do not ask the database each for itself.
CACHE_S = 2.0
#: A database or a Redis that does not answer within this is down.
TIMEOUT_S = 2.0


class MetricsRoutes:
    """`/metrics`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._standing: Standing | None = None
        #: Worker processes with a fresh heartbeat, and how many of them are not well; None: Redis does not answer.
        self._workers: tuple[int, int] | None = None
        self._asked_at = float("-inf")
        self._asking = asyncio.Lock()

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/metrics",
                "get_metrics",
                "Figures for Prometheus",
                self._get,
                {200: Answer("Prometheus's text format. It is there too while the database or Redis is away.")},
                quiet=True,
            )
        ]

    async def _get(self, request: Request) -> ASGIApp:
        async with self._asking:
            if time.monotonic() - self._asked_at > CACHE_S:
                self._standing, self._workers = await asyncio.gather(self._read_standing(), self._count_workers())
                self._asked_at = time.monotonic()
        metrics = self._services.metrics
        metrics.open_streams.set(self._services.hub.following)
        registry = CollectorRegistry()
        registry.register(_Standing(self._standing, self._workers))
        counted = await asyncio.to_thread(metrics.expose)
        return Response(counted + generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def _read_standing(self) -> Standing | None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._services.database.read(read_standing)
        except (StorageUnavailable, TimeoutError):
            return None

    async def _count_workers(self) -> tuple[int, int] | None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                alive = await Heartbeats(self._services.log.redis, self._services.settings.namespace).alive()
        except (RedisError, OSError, TimeoutError):
            return None
        return len(alive), sum(bool(heartbeat.find_faults(age_s, FRESH_WITHIN_S)) for heartbeat, age_s in alive)


class _Standing(Collector):
    """The gauges of one moment."""

    def __init__(self, standing: Standing | None, workers: tuple[int, int] | None) -> None:
        self._standing = standing
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        yield _gauge("database_up", "Whether the database answers.", self._standing is not None)
        yield _gauge("redis_up", "Whether Redis answers.", self._workers is not None)
        if self._workers is not None:
            yield _gauge("workers", "Worker processes with a fresh heartbeat.", self._workers[0])
            yield _gauge("workers_unwell", "Those that do not poll, or whose loop is blocked.", self._workers[1])
        if self._standing is not None:
            yield from _of_queues(self._standing)
            yield from _of_the_rest(self._standing)


def _of_queues(standing: Standing) -> Iterator[Metric]:
    queues = standing.queues.items()
    yield _gauges("queue_depth", "Jobs that wait.", ((name, one.queued) for name, one in queues))
    yield _gauges("queue_due", "Jobs that a worker could claim at once.", ((name, one.due) for name, one in queues))
    yield _gauges("running", "Jobs that are being answered.", ((name, one.running) for name, one in queues))
    yield _gauges(
        "queue_oldest_due_seconds",
        "How long the oldest of those that could be claimed has been due.",
        ((name, _age_s(standing, one.oldest_due_at)) for name, one in queues if one.oldest_due_at is not None),
    )
    yield _gauges(
        "queue_paused_seconds",
        "How long the queue has been paused; only of queues that are.",
        ((name, _age_s(standing, one.paused_at)) for name, one in queues if one.paused_at is not None),
    )


def _of_the_rest(standing: Standing) -> Iterator[Metric]:
    yield _gauge("dead_letters", "Dead letters nobody has decided about.", standing.dead_letters)
    yield _gauge("quarantine", "Unreadable messages nobody has decided about.", standing.quarantine)
    open_ = [row for row in standing.breakers if row["opened_at"] is not None]
    yield _gauges("breaker_open", "Breakers that are open.", ((row["name"], 1) for row in open_), label="breaker")
    yield _gauge("jobs_held", "Jobs that wait for a breaker.", sum(row["held"] for row in standing.breakers))


def _age_s(standing: Standing, since_us: int) -> float:
    return max(0, standing.at - since_us) / MICROSECONDS


def _gauge(name: str, says: str, value: float) -> Metric:
    return GaugeMetricFamily(f"chatmill_{name}", says, value=float(value))


def _gauges(name: str, says: str, values: Iterable[tuple[str, float]], label: str = "queue") -> Metric:
    family = GaugeMetricFamily(f"chatmill_{name}", says, labels=[label])
    for value_of, value in values:
        family.add_metric([value_of], value)
    return family
