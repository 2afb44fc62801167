"""An answer ends in time, and lets go of the model and of its tools."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import aclosing
from uuid import uuid4

import pytest

from handlers.langgraph_handler import LangGraphHandler
from schemas.agent_message import ChatMessage
from tests.demo_server import DemoServer
from tests.integration.agents.asking import a_tool, ask, session


async def test_the_time_limit_of_an_attempt_ends_a_slow_model(demo: DemoServer) -> None:
    marker = uuid4().hex
    answer = await ask(session(demo, timeout_s=0.3), f"[words=1000][pace=50] {marker}")

    assert answer.error is not None
    assert (answer.error.code, answer.error.retryable) == ("timeout", True)
    assert answer.text.startswith("word1")
    await demo.awaited(containing=marker, state="gone")


async def test_the_time_limit_of_an_attempt_ends_a_slow_tool(demo: DemoServer) -> None:
    release = threading.Event()
    started = time.monotonic()

    answer = await ask(
        session(demo, timeout_s=0.3, tools=(a_tool(lambda: release.wait(10)),)),
        "[call:probe {}]",
    )

    assert answer.error is not None
    assert answer.error.code == "timeout"
    assert time.monotonic() - started < 3
    release.set()


async def test_the_time_limit_counts_the_reading_of_the_history(demo: DemoServer) -> None:
    async def read_history(reply_to: str | None = None) -> list[ChatMessage]:
        await asyncio.sleep(10)
        return []

    answer = await ask(session(demo, timeout_s=0.05, read_history=read_history), "hello")

    assert answer.error is not None
    assert answer.error.code == "timeout"


async def test_a_reader_that_is_slow_is_not_the_models_fault(demo: DemoServer) -> None:
    events = LangGraphHandler(session(demo, timeout_s=0.5)).astream_events("[words=3]")
    async with aclosing(events):
        await anext(events)
        await asyncio.sleep(0.7)
        rest = [event.kind async for event in events]

    assert rest == ["text", "text", "final"]


@pytest.mark.parametrize("text", ["[words=1000][pace=20]", "[first=30000]"])
async def test_a_cancelled_answer_hangs_up_on_the_model(demo: DemoServer, text: str) -> None:
    marker = uuid4().hex
    task = asyncio.create_task(ask(session(demo), f"{text} {marker}"))
    await demo.awaited(containing=marker, state="open")
    started = time.monotonic()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    await demo.awaited(containing=marker, state="gone")
    assert time.monotonic() - started < 2


async def test_closing_the_events_early_hangs_up_on_the_model(demo: DemoServer) -> None:
    marker = uuid4().hex
    async with aclosing(LangGraphHandler(session(demo)).astream_events(f"[words=1000][pace=20] {marker}")) as events:
        await anext(events)

    await demo.awaited(containing=marker, state="gone")


async def test_a_cancelled_answer_cancels_its_tools(demo: DemoServer) -> None:
    running, ended = asyncio.Event(), asyncio.Event()

    async def function() -> None:
        running.set()
        try:
            await asyncio.sleep(10)
        finally:
            ended.set()

    task = asyncio.create_task(ask(session(demo, tools=(a_tool(function),)), "[call:probe {}]"))
    await running.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
