"""What happens in a run, and in which order: derived from the seed alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tests.chaos.mix import Conversation, Mix
from tests.chaos.scale import Scale

#: How often two faults of different families are made at once.
TOGETHER = 0.3
#: So many steps are planned at least; a run takes as many as it has time for.
STEPS = 5_000


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault by name, and the part of the stage it belongs to: `worker`, `gateway`, `redis`, `database`, `model`."""

    name: str
    family: str


@dataclass(frozen=True, slots=True)
class Step:
    """Faults that are made at once, after a pause; `lot` decides about whom, between 0 and 1."""

    faults: tuple[Fault, ...]
    pause_s: float
    lot: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps in order; the first `round_size` of them hold every fault once."""

    seed: int
    steps: tuple[Step, ...]
    round_size: int
    conversations: tuple[Conversation, ...]

    @classmethod
    def of(cls, seed: int, jobs: int, scale: Scale, faults: Sequence[Fault]) -> Self:
        """The schedule of a seed. Another set of faults or another scale is another schedule."""
        rng = random.Random(f"{seed}/faults")
        steps: list[Step] = []
        round_size = 0
        while faults and len(steps) < STEPS:
            steps += _round(rng, scale, faults)
            round_size = round_size or len(steps)
        mix = Mix(random.Random(f"{seed}/jobs"), short=scale.short)
        return cls(seed, tuple(steps), round_size, tuple(mix.conversations(jobs)))


def _round(rng: random.Random, scale: Scale, faults: Sequence[Fault]) -> list[Step]:
    """Every fault once, in a random order, some of them together with one of another family."""
    left = list(faults)
    rng.shuffle(left)
    steps = []
    while left:
        chosen = [left.pop()]
        others = [fault for fault in left if fault.family != chosen[0].family]
        if others and rng.random() < TOGETHER:
            chosen.append(others[-1])
            left.remove(others[-1])
        steps.append(Step(tuple(chosen), rng.uniform(0.2, 1) * scale.pause_s, rng.random()))
    return steps
