"""The one event loop of a worker process, on a thread of its own; dramatiq's threads only wait for it."""

from __future__ import annotations

import asyncio
from typing import Any

import uvloop
from dramatiq.asyncio import EventLoopThread, get_event_loop_thread, set_event_loop_thread
from dramatiq.middleware import AsyncIO

#: How often a waiting thread wakes up for dramatiq's own interrupts, which chatmill does not use. At dramatiq's 0.1 s
#: two hundred waiting threads cost 8 % of a core.
INTERRUPT_CHECK_S = 1.0
START_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 5.0


class ChatEventLoop(AsyncIO):
    """dramatiq's AsyncIO middleware on uvloop, with threads that wait quietly."""

    def before_worker_boot(self, broker: Any, worker: Any) -> None:
        thread = EventLoopThread(self.logger, interrupt_check_ival=INTERRUPT_CHECK_S)
        thread.loop.close()
        thread.loop = uvloop.new_event_loop()
        thread.daemon = True
        thread.start(timeout=START_TIMEOUT_S)
        set_event_loop_thread(thread)

    def after_worker_shutdown(self, broker: Any, worker: Any) -> None:
        thread = get_event_loop_thread()
        if thread is not None:
            thread.loop.call_soon_threadsafe(thread.loop.stop)
            # Not for ever: with anything left open on it uvloop's close never returns. The thread is a daemon.
            thread.join(STOP_TIMEOUT_S)
        set_event_loop_thread(None)


def worker_loop() -> asyncio.AbstractEventLoop:
    """The loop that ChatEventLoop has started."""
    thread = get_event_loop_thread()
    if thread is None:
        raise RuntimeError("the worker's event loop is not running")
    return thread.loop
