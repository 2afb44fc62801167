"""What the routes work with, opened when the gateway starts and closed when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway.event_hub import EventHub
from schemas.settings import Settings
from storage.database import Database, open_database
from storage.event_log import EventLog
from storage.redis_client import open_redis
from workers.bulk_runner import BulkRunner
from workers.cancelling import cancel_all
from workers.loop_lag import measure_loop_lag
from workers.metrics import Metrics
from workers.producer import Producer
from workers.reconciler import Reconciler


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a route may need; `log.redis` is the connection pool."""

    settings: Settings
    database: Database
    log: EventLog
    producer: Producer
    hub: EventHub
    bulk_runner: BulkRunner
    metrics: Metrics


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """The services for the time of the context. Redis and the database may be down: they are connected to when used.

    Raises ConfigurationError or OSError for addresses that can never work.
    """
    metrics = Metrics()
    database = open_database(settings.sqlalchemy_url)
    try:
        redis = open_redis(settings.redis_url.get_secret_value())
        try:
            log = EventLog(
                redis,
                settings.namespace,
                ttl_live_s=settings.event_ttl_live_s,
                ttl_ended_s=settings.event_ttl_ended_s,
            )
            producer = Producer(settings, database, log, metrics)
            # Jobs are looked after here too: a gateway without workers still ends what has lapsed.
            bulk_runner = BulkRunner(settings, database, log, producer)
            tasks = [
                asyncio.create_task(Reconciler(settings, database, log, producer).run(), name="reconciler"),
                asyncio.create_task(bulk_runner.run(), name="bulk-runner"),
                asyncio.create_task(measure_loop_lag(metrics), name="loop-lag"),
            ]
            try:
                async with EventHub(log, database, idle_check_s=settings.idle_check_s, metrics=metrics) as hub:
                    yield Services(settings, database, log, producer, hub, bulk_runner, metrics)
            finally:
                await cancel_all(tasks)
        finally:
            await redis.aclose()
    finally:
        await database.close()
