"""Ending background tasks for good."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

#: How long a cancelled task may take before it is cancelled again.
CANCEL_AGAIN_S = 0.1


async def end_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until they have ended.

    More than once if need be: before Python 3.12 `asyncio.wait_for`, by which redis-py sends, may swallow it.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
