"""The names of lanes: a queue's own, and the one beside it for jobs that must run alone."""

from __future__ import annotations

#: A queue's name holds no dot, so no queue is taken for another one's lane.
_ALONE = ".alone"


def alone_lane(queue: str) -> str:
    """The lane of the queue's jobs that a process runs alone, because they were lost twice in company."""
    return queue + _ALONE


def is_alone(lane: str) -> bool:
    """Whether nobody is rung for this lane: its jobs go to a process that is started for each."""
    return lane.endswith(_ALONE)


def queue_of(lane: str) -> str:
    """The queue that a lane belongs to."""
    return lane.removesuffix(_ALONE)
