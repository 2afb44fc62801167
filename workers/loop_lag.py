"""Measures, about once a second, how late the event loop is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from workers.metrics import Metrics

LOOK_S = 1.0


async def measure_loop_lag(metrics: Metrics, abandoned: Callable[[], int] | None = None) -> None:
    """Observe until cancelled; `abandoned` tells how many threads nobody waits for any more."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LOOK_S
        await asyncio.sleep(LOOK_S)
        metrics.loop_lag.observe(max(0.0, loop.time() - due))
        if abandoned is not None:
            metrics.abandoned_threads.set(abandoned())
