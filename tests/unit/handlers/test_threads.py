"""Blocking code runs beside the event loop and can be left behind."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator

import pytest

from handlers.threads import ThreadLimit, iterate_in_thread

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class Gate:
    """Blocks threads until it is opened, and knows how many wait."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.waiting = asyncio.Semaphore(0)

    def block(self) -> str:
        self._loop.call_soon_threadsafe(self.waiting.release)
        self._open.wait(10)
        return "passed"

    def open(self) -> None:
        self._open.set()


async def until(limit: ThreadLimit, running: int) -> None:
    """Wait until so many threads run; the threads end on their own, and tell nobody."""
    async with asyncio.timeout(5):
        while limit.running != running:  # noqa: ASYNC110 - as said above
            await asyncio.sleep(0.001)


async def test_a_call_returns_what_the_function_returns() -> None:
    assert await ThreadLimit(1).call(lambda: 42) == 42


async def test_a_call_raises_what_the_function_raises() -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await ThreadLimit(1).call(fail)


async def test_sys_exit_on_a_thread_does_not_end_the_process() -> None:
    def leave() -> None:
        raise SystemExit(1)

    with pytest.raises(RuntimeError, match=r"sys\.exit"):
        await ThreadLimit(1).call(leave)


async def test_the_thread_sees_the_callers_context_and_cannot_change_it() -> None:
    def change() -> str:
        seen = VARIABLE.get()
        VARIABLE.set("changed")
        return seen

    VARIABLE.set("mine")

    assert await ThreadLimit(1).call(change) == "mine"
    assert VARIABLE.get() == "mine"


async def test_calls_beyond_the_limit_wait_for_a_place() -> None:
    limit, gate = ThreadLimit(1), Gate()
    first = asyncio.create_task(limit.call(gate.block))
    await gate.waiting.acquire()
    second = asyncio.create_task(limit.call(lambda: "second"))
    await asyncio.sleep(0)

    assert limit.running == 1
    gate.open()
    assert (await first, await second) == ("passed", "second")
    await until(limit, 0)


async def test_a_thread_nobody_waits_for_is_counted_until_it_ends() -> None:
    limit, gate = ThreadLimit(1), Gate()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await limit.call(gate.block)

    assert (limit.running, limit.abandoned) == (1, 1)
    gate.open()
    await until(limit, 0)
    assert limit.abandoned == 0


async def test_fifty_abandoned_calls_never_make_more_threads_than_the_limit() -> None:
    limit, gate = ThreadLimit(4), Gate()
    before = threading.active_count()
    for _ in range(50):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await limit.call(gate.block)

    assert limit.running <= 4
    assert threading.active_count() <= before + 4
    gate.open()
    await until(limit, 0)
    assert await limit.call(lambda: "usable") == "usable"


async def test_a_waiter_that_gives_up_does_not_take_the_place_with_it() -> None:
    limit, gate = ThreadLimit(1), Gate()
    first = asyncio.create_task(limit.call(gate.block))
    await gate.waiting.acquire()
    waiter = asyncio.create_task(limit.call(lambda: "never"))
    await asyncio.sleep(0)
    waiter.cancel()
    gate.open()

    assert await first == "passed"
    assert await limit.call(lambda: "next") == "next"


async def test_items_of_a_blocking_iterator_arrive_in_order() -> None:
    items = [item async for item in iterate_in_thread(lambda: iter(range(100)), timeout_s=5)]

    assert items == list(range(100))


async def test_an_iterators_error_comes_after_its_items() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("x")

    steps = iterate_in_thread(items, timeout_s=5)

    assert await anext(steps) == 1
    with pytest.raises(KeyError):
        await anext(steps)


async def test_an_iterator_that_blocks_too_long_is_left_behind() -> None:
    gate = Gate()

    def items() -> Iterator[str]:
        yield "first"
        yield gate.block()

    steps = iterate_in_thread(items, timeout_s=0.2)

    assert await anext(steps) == "first"
    with pytest.raises(TimeoutError):
        await anext(steps)
    gate.open()


async def test_a_cancellation_inside_the_thread_is_not_the_callers() -> None:
    def items() -> Iterator[int]:
        yield from (fail() for _ in range(1))

    def fail() -> int:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="cancelled"):
        _ = [item async for item in iterate_in_thread(items, timeout_s=5)]


async def test_an_iterator_that_is_not_read_to_its_end_stops_at_its_next_item() -> None:
    ended = threading.Event()

    def items() -> Iterator[int]:
        number = 0
        try:
            while True:
                yield number
                number += 1
        finally:
            ended.set()

    steps = iterate_in_thread(items, timeout_s=5)
    await anext(steps)
    await steps.aclose()

    assert await asyncio.to_thread(ended.wait, 5)
