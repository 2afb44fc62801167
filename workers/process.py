"""What one worker process is made of, opened and closed on its event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

import structlog
from dramatiq.middleware import Middleware
from dramatiq.middleware.middleware import MiddlewareError

from handlers.factory import HandlerFactory
from handlers.tools import ToolRegistry
from schemas.settings import Settings
from storage.database import Database, open_database
from storage.event_log import EventLog
from storage.quarantine import keep
from storage.redis_client import open_redis
from workers.cancelling import cancel_all
from workers.chat_actor import ChatActor
from workers.control import ControlListener
from workers.desk import Desk
from workers.event_loop import worker_loop
from workers.event_writer import EventWriter
from workers.leases import LeaseThread
from workers.producer import Producer
from workers.reconciler import Reconciler

T = TypeVar("T")

#: How long opening, closing and keeping a message may take, seen from a thread beside the loop.
CALL_TIMEOUT_S = 30.0

logger = structlog.get_logger(__name__)


class WorkerProcess(Middleware):
    """Opens everything that belongs to the loop when the worker boots; settles and closes it when it shuts down.

    Stands behind ChatEventLoop in the broker's list, so that the loop is there first and goes last.
    """

    def __init__(self, settings: Settings, handlers: HandlerFactory, tools: ToolRegistry) -> None:
        self._settings = settings
        self._handlers = handlers
        self._tools = tools
        self._open: _OpenProcess | None = None

    @property
    def actor(self) -> ChatActor:
        """What takes the queue's messages; raises RuntimeError before the worker has booted."""
        if self._open is None:
            raise RuntimeError("the worker process is not open")
        return self._open.actor

    def before_worker_boot(self, broker: Any, worker: Any) -> None:
        try:
            self._open = _call(self._start())
        except Exception as error:
            logger.exception("the worker cannot start")
            raise MiddlewareError(str(error)) from error
        broker.keeper = self._keep
        self._begin_at_signal(signal.SIGTERM, broker)

    def before_worker_shutdown(self, broker: Any, worker: Any) -> None:
        self._begin_shutdown(broker)

    def after_worker_shutdown(self, broker: Any, worker: Any) -> None:
        if self._open is not None:
            opened, self._open = self._open, None
            _call(opened.close())

    async def _start(self) -> _OpenProcess:
        return _OpenProcess(self._settings, self._handlers, self._tools)

    def _begin_shutdown(self, broker: Any) -> None:
        broker.closing = True
        if self._open is not None:
            worker_loop().call_soon_threadsafe(self._open.desk.begin_shutdown)

    def _begin_at_signal(self, number: signal.Signals, broker: Any) -> None:
        """Begin the grace at the signal itself: dramatiq looks up to a second later."""
        if threading.current_thread() is not threading.main_thread():
            return  # a worker inside somebody's process, a test's: signals are theirs
        previous = signal.getsignal(number)

        def begin(signum: int, frame: FrameType | None) -> None:
            self._begin_shutdown(broker)
            if callable(previous):
                previous(signum, frame)

        signal.signal(number, begin)

    def _keep(self, queue: str, reason: str, payload: bytes) -> None:
        if self._open is None:
            raise RuntimeError("the worker process is not open")
        _call(self._open.database.write(keep, queue, reason, payload))
        logger.warning("kept an unreadable message in quarantine", queue=queue, reason=reason)


class _OpenProcess:
    """The open resources. Made on the loop they belong to."""

    def __init__(self, settings: Settings, handlers: HandlerFactory, tools: ToolRegistry) -> None:
        url = settings.redis_url.get_secret_value()
        self.database: Database = open_database(settings.sqlalchemy_url)
        self._redis = open_redis(url)
        self._listening = open_redis(url, socket_timeout=None)
        self._handlers = handlers
        log = EventLog(
            self._redis,
            settings.namespace,
            ttl_live_s=settings.event_ttl_live_s,
            ttl_ended_s=settings.event_ttl_ended_s,
        )
        self._writer = EventWriter(self.database, log)
        producer = Producer(settings, self.database, log)
        self.desk = Desk(settings, self.database, log, self._writer, handlers, tools)
        self.actor = ChatActor(settings, self.database, producer, self.desk)
        self._leases = LeaseThread(settings, self.desk)
        control = ControlListener(self._listening, settings.namespace, self.desk.cancel)
        reconciler = Reconciler(settings, self.database, log, producer)
        self._writer.start()
        self._leases.start()
        self._tasks = [
            asyncio.create_task(control.run(), name="control"),
            asyncio.create_task(reconciler.run(), name="reconciler"),
        ]
        logger.info("worker ready", queue=settings.queue, worker=self.desk.worker_id)

    async def close(self) -> None:
        await self.desk.close()
        await cancel_all(self._tasks)
        await self._leases.close()
        await self._writer.close()
        await self._handlers.close()
        await self._redis.aclose()
        await self._listening.aclose()
        await self.database.close()


def _call(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the worker's loop and wait for it, from a thread beside it."""
    return asyncio.run_coroutine_threadsafe(coroutine, worker_loop()).result(CALL_TIMEOUT_S)
