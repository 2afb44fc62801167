"""What was done to the stage, and when, by the database's clock."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field


def pid_of(worker: str) -> int:
    """The process that a worker's id, `<host>-<pid>-<suffix>`, speaks of."""
    return int(worker.split("-")[-2])


@dataclass(slots=True)
class Happening:
    """One fault that was made. Times are microseconds of the database's clock; `end` is None while it lasts."""

    fault: str
    family: str
    #: Which one it was done to, for people.
    target: str
    begin: int
    end: int | None = None
    #: Processes that were killed or stood still: their attempts may be lost.
    victims: frozenset[int] = frozenset()
    #: Processes that were told to end in order: their attempts may not be charged.
    told: frozenset[int] = frozenset()


@dataclass(slots=True)
class Timeline:
    """All of them, in order."""

    happenings: list[Happening] = field(default_factory=list)

    def overlapping(self, begin: int, end: int, *families: str, slack: int = 0) -> list[Happening]:
        """Those of these families (of all, if none is named) that touch the time between `begin` and `end`."""
        return [
            one
            for one in self.happenings
            if (not families or one.family in families)
            and one.begin - slack <= end
            and (one.end is None or one.end + slack >= begin)
        ]

    def last_end(self, faults: Container[str]) -> int:
        """When the last of these faults was over; 0 if there was none."""
        return max((one.end or one.begin for one in self.happenings if one.fault in faults), default=0)
