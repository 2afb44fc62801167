"""Numbers worth printing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and 99th percentile of some measurements."""

    p50: float
    p99: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        return cls(statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], len(ordered))

    def milliseconds(self) -> dict[str, float]:
        """The same in milliseconds, for a report; the values are seconds."""
        return {"p50_ms": round(self.p50 * 1000, 2), "p99_ms": round(self.p99 * 1000, 2), "count": self.count}
