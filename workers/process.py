"""What one worker process is made of, opened and closed on its event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

import structlog
from dramatiq.middleware import Middleware
from dramatiq.middleware.middleware import MiddlewareError

from handlers.factory import HandlerFactory
from handlers.tools import ToolRegistry
from schemas.settings import Settings
from storage.quarantine import keep
from workers.alone import AloneRunner
from workers.bulk_runner import BulkRunner
from workers.cancelling import cancel_all
from workers.chat_actor import ChatActor
from workers.event_loop import worker_loop
from workers.heartbeat import HeartbeatThread
from workers.main import SHUTDOWN_MARGIN_S
from workers.open_worker import OpenWorker
from workers.parent_watch import watch_parent
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
            self._open = _call(self._start(lambda: broker.polled_at))
        except Exception as error:
            logger.exception("the worker cannot start")
            raise MiddlewareError(str(error)) from error
        broker.keeper = self._keep
        if threading.current_thread() is threading.main_thread():
            self._end_in_order(broker)

    def before_worker_shutdown(self, broker: Any, worker: Any) -> None:
        self._begin_shutdown(broker)

    def after_worker_shutdown(self, broker: Any, worker: Any) -> None:
        if self._open is not None:
            opened, self._open = self._open, None
            # A job that runs alone has had the grace as well, and may still have to be settled.
            _call(opened.close(), self._settings.shutdown_grace_s + SHUTDOWN_MARGIN_S + CALL_TIMEOUT_S)

    async def _start(self, polled_at: Callable[[], float | None]) -> _OpenProcess:
        return _OpenProcess(self._settings, self._handlers, self._tools, polled_at)

    def _begin_shutdown(self, broker: Any) -> None:
        broker.closing = True
        if self._open is not None:
            worker_loop().call_soon_threadsafe(self._open.begin_shutdown)

    def _end_in_order(self, broker: Any) -> None:
        """Begin the grace at SIGTERM itself, since dramatiq looks up to a second later, and when the master is gone.

        Not for a worker inside somebody's process, a test's: signals are theirs.
        """
        previous = signal.getsignal(signal.SIGTERM)

        def begin(signum: int, frame: FrameType | None) -> None:
            self._begin_shutdown(broker)
            if callable(previous):
                previous(signum, frame)

        signal.signal(signal.SIGTERM, begin)
        patience_s = self._settings.shutdown_grace_s + SHUTDOWN_MARGIN_S + CALL_TIMEOUT_S
        watch_parent(os.getppid(), lambda: os.kill(os.getpid(), signal.SIGTERM), patience_s)

    def _keep(self, queue: str, reason: str, payload: bytes) -> None:
        if self._open is None:
            raise RuntimeError("the worker process is not open")
        _call(self._open.database.write(keep, queue, reason, payload))
        self._open.metrics.quarantined(queue)
        logger.warning("kept an unreadable message in quarantine", queue=queue, reason=reason)


class _OpenProcess:
    """The open resources. Made on the loop they belong to."""

    def __init__(
        self,
        settings: Settings,
        handlers: HandlerFactory,
        tools: ToolRegistry,
        polled_at: Callable[[], float | None],
    ) -> None:
        self._worker = worker = OpenWorker(settings, handlers, tools)
        self.database, self.desk = worker.database, worker.desk
        self.metrics = worker.metrics
        producer = Producer(settings, worker.database, worker.log, worker.metrics)
        self.actor = ChatActor(settings, worker.database, producer, worker.desk)
        self._heartbeat = HeartbeatThread(settings, worker.desk, worker.watch, polled_at)
        self._alone = AloneRunner(settings, worker.database, worker.redis)
        reconciler = Reconciler(settings, worker.database, worker.log, producer)
        bulk_runner = BulkRunner(settings, worker.database, worker.log, producer)
        self._heartbeat.start()
        self._alone.start()
        self._tasks = [
            asyncio.create_task(reconciler.run(), name="reconciler"),
            asyncio.create_task(bulk_runner.run(), name="bulk-runner"),
        ]
        logger.info("worker ready", queue=settings.queue, worker=self.desk.worker_id)

    def begin_shutdown(self) -> None:
        """Claim nothing more here or in a process that runs a job alone; what runs has the grace."""
        self.desk.begin_shutdown()
        self._alone.begin_shutdown()

    async def close(self) -> None:
        await self.desk.close()
        await self._alone.close()
        await cancel_all(self._tasks)
        await self._heartbeat.close()
        await self._worker.close()


def _call(coroutine: Coroutine[Any, Any, T], timeout_s: float = CALL_TIMEOUT_S) -> T:
    """Run a coroutine on the worker's loop and wait for it, from a thread beside it."""
    return asyncio.run_coroutine_threadsafe(coroutine, worker_loop()).result(timeout_s)
