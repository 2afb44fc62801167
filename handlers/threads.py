"""Blocking code beside the event loop, on threads that can be left behind.

concurrent.futures joins its threads when the process ends, so a single call that never returns would keep a worker
alive for ever. The threads here are daemons: whoever stops waiting for one leaves it to run out on its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    value: T


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


@dataclass(frozen=True, slots=True)
class _Ended:
    """What an iterating thread delivers after its last item."""


class ThreadLimit:
    """Runs blocking calls on daemon threads, at most `limit` at once; further calls wait for a free place.

    Threads are started when they are needed and then kept: starting one takes longer than most calls.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0
        self._running = 0
        self._abandoned = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def running(self) -> int:
        """Calls that run now, abandoned ones included."""
        return self._running

    @property
    def abandoned(self) -> int:
        """Calls that still run although nobody waits for their result any more."""
        return self._abandoned

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` on a thread, with a copy of the caller's context, and return or raise what it does.

        When the waiting task is cancelled (a deadline does that too) the thread is abandoned and its result dropped.
        """
        await self._take_place()
        outcome: asyncio.Future[_Item[T] | _Raised] = asyncio.get_running_loop().create_future()
        context = contextvars.copy_context()
        # One of the two sides reaches the lock first: the thread that has finished or the task that has given up.
        finished = abandoned = False

        def run() -> None:
            nonlocal finished
            result = context.run(_outcome_of, function)
            with self._lock:
                finished = True
                self._abandoned -= abandoned
                self._idle += 1
                self._give_place()
            _deliver(outcome.get_loop(), _settle, outcome, result)

        self._submit(run)
        try:
            result = await outcome
        except asyncio.CancelledError:
            with self._lock:
                abandoned = not finished
                self._abandoned += abandoned
            raise
        if isinstance(result, _Raised):
            raise result.error
        return result.value

    def _submit(self, run: Callable[[], None]) -> None:
        with self._lock:
            start = not self._idle
            self._idle -= not start
        self._work.put(run)
        if start:
            threading.Thread(target=self._serve, daemon=True, name="blocking-call").start()

    def _serve(self) -> None:
        while True:
            run = self._work.get()
            run()
            del run  # or its result would live as long as this thread has nothing to do

    async def _take_place(self) -> None:
        with self._lock:
            if self._running < self._limit:
                self._running += 1
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                else:  # a place had just been handed over
                    self._give_place()
            raise

    def _give_place(self) -> None:
        """Hand the place of a finished call to the next waiter, or free it. Called with the lock held."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if _deliver(waiter.get_loop(), _settle, waiter, None):
                return
        self._running -= 1


async def iterate_in_thread(make_iterator: Callable[[], Iterator[T]], *, timeout_s: float) -> AsyncGenerator[T, None]:
    """Yield what a blocking iterator yields, from a daemon thread with a copy of the caller's context.

    Raises what the iterator raises, and TimeoutError `timeout_s` seconds after the first step was asked for. A thread
    that is left behind ends at its next item.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    arrived: asyncio.Queue[_Item[T] | _Raised | _Ended] = asyncio.Queue()
    left = threading.Event()

    def run() -> None:
        try:
            for item in make_iterator():
                if left.is_set() or not _deliver(loop, arrived.put_nowait, _Item(item)):
                    return
        except asyncio.CancelledError:
            # Raised as it is it would look like a cancellation of whoever waits here.
            _deliver(loop, arrived.put_nowait, _Raised(RuntimeError("the code on the thread was cancelled")))
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            _deliver(loop, arrived.put_nowait, _raised(error))
        else:
            _deliver(loop, arrived.put_nowait, _Ended())

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), daemon=True, name="blocking-iterator").start()
    try:
        while True:
            async with asyncio.timeout_at(deadline):
                step = await arrived.get()
            if isinstance(step, _Raised):
                raise step.error
            if isinstance(step, _Ended):
                return
            yield step.value
    finally:
        left.set()


def _outcome_of(function: Callable[[], T]) -> _Item[T] | _Raised:
    try:
        return _Item(function())
    except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
        return _raised(error)


def _raised(error: BaseException) -> _Raised:
    # sys.exit() on a thread ends that thread; raised on the event loop it would end the worker.
    return _Raised(RuntimeError("the code on the thread called sys.exit()") if isinstance(error, SystemExit) else error)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _deliver(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> bool:
    """Call `function` on the loop; False if the loop is closed, so that nobody is there to be told."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        return False
    return True
