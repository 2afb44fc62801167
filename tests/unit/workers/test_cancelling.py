"""Tasks that run for ever end when they are told to, even if they did not hear it the first time."""

from __future__ import annotations

import asyncio

import pytest

from workers import cancelling
from workers.cancelling import cancel_all


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancelling, "PATIENCE_S", 0.01)


async def runs_for_ever() -> None:
    await asyncio.Event().wait()


async def hears_the_third_time() -> None:
    for _ in range(2):
        try:
            await runs_for_ever()
        except asyncio.CancelledError:
            continue
    await runs_for_ever()


async def fails_when_told() -> None:
    try:
        await runs_for_ever()
    finally:
        raise ValueError


async def test_every_task_has_ended_however_it_ends() -> None:
    tasks = [asyncio.create_task(run()) for run in (runs_for_ever, hears_the_third_time, fails_when_told)]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await cancel_all(tasks)
    assert all(task.done() for task in tasks)


async def test_no_task_is_no_wait() -> None:
    await cancel_all([])
