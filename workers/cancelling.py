"""Ending tasks that run for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

#: How long a task may take to end before it is cancelled once more.
PATIENCE_S = 0.5


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended, however they end.

    Once is not enough: before Python 3.12 `asyncio.wait_for`, by which redis-py sends, swallows a cancellation that
    comes just as it is done.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=PATIENCE_S)
        await asyncio.gather(*done, return_exceptions=True)
