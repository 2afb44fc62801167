"""The demo model that the tests of a process share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import graph.fast_stream
import graph.llm
from graph.llm import close_loop_models
from tests.demo_server import DemoServer, demo_server


@pytest.fixture(scope="package")
def demo() -> Iterator[DemoServer]:
    """One server for all tests here; tests tell their requests apart by a text of their own."""
    with demo_server() as server:
        yield server


@pytest.fixture(autouse=True)
async def models(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Short waits for silent servers, and no connection left open."""
    monkeypatch.setattr(graph.llm, "SILENCE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(graph.fast_stream, "AFTER_FINISH_S", 0.1)
    yield
    await close_loop_models()
