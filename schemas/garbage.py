"""Garbage collection for a process that has loaded what it needs and now answers requests."""

from __future__ import annotations

import gc

#: Allocations between two looks at the youngest objects. Python's 700 suits small programs: one request alone makes
#: thousands of objects, nearly all of which are freed without the collector.
YOUNG = 20_000


def settle_in() -> None:
    """Take everything loaded so far out of the collector's sight: it stays until the end anyway.

    Scanning the modules of an agent framework takes 50 to 100 ms, during which no token moves; it was seen to happen
    every few jobs, and to cost a tenth of a worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 50)
