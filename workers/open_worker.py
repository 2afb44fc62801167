"""What every process that answers jobs has open: a worker's, and one that runs a single job alone."""

from __future__ import annotations

import asyncio

from handlers.factory import HandlerFactory
from handlers.tool_runner import TOOL_THREADS
from handlers.tools import ToolRegistry
from schemas.settings import Settings
from storage.database import Database, open_database
from storage.event_log import EventLog
from storage.redis_client import open_redis
from workers.cancelling import cancel_all
from workers.control import ControlListener
from workers.desk import Desk
from workers.event_writer import EventWriter
from workers.leases import LeaseThread
from workers.loop_lag import measure_loop_lag
from workers.loop_watch import LoopWatch
from workers.metrics import Metrics


class OpenWorker:
    """The resources, open and at work. Made on the loop they belong to.

    Its desk claims from `lane`: the one of the settings' queue, if left out.
    """

    def __init__(
        self, settings: Settings, handlers: HandlerFactory, tools: ToolRegistry, lane: str | None = None
    ) -> None:
        url = settings.redis_url.get_secret_value()
        self.database: Database = open_database(settings.sqlalchemy_url)
        self.redis = open_redis(url)
        self._listening = open_redis(url, socket_timeout=None)
        self._handlers = handlers
        self.log = EventLog(
            self.redis,
            settings.namespace,
            ttl_live_s=settings.event_ttl_live_s,
            ttl_ended_s=settings.event_ttl_ended_s,
        )
        self.metrics = Metrics()
        self._writer = EventWriter(self.database, self.log, self.metrics)
        self.desk = Desk(settings, self.database, self.log, self._writer, handlers, tools, lane)
        self.watch = LoopWatch()
        self._leases = LeaseThread(settings, self.desk, self.watch, self.metrics)
        control = ControlListener(self._listening, settings.namespace, self.desk.cancel)
        self._writer.start()
        self.watch.start()
        self._leases.start()
        self._tasks = [
            asyncio.create_task(control.run(), name="control"),
            asyncio.create_task(self.desk.breakers.run(), name="breakers"),
            asyncio.create_task(measure_loop_lag(self.metrics, lambda: TOOL_THREADS.abandoned), name="loop-lag"),
        ]

    async def close(self) -> None:
        """Settle what runs, within its grace, then close everything."""
        await self.desk.close()
        await cancel_all(self._tasks)
        await self._leases.close()
        await self.watch.close()
        await self._writer.close()
        await self._handlers.close()
        await self.redis.aclose()
        await self._listening.aclose()
        await self.database.close()
