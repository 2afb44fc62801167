"""What is known of a run when it is over: what clients recorded, what SQL and the logs hold, what was done to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from schemas.job_event import EventId
from tests.chaos.happenings import Timeline
from tests.chaos.mix import Turn

Row = dict[str, Any]


@dataclass(slots=True)
class Sitting:
    """One connection of a client: from where it asked, and every byte it was answered."""

    #: The `Last-Event-ID` it sent; None asks for everything.
    cursor: str | None
    #: 0 if no answer came.
    status: int = 0
    body: bytes = b""


@dataclass(slots=True)
class Client:
    """Everything one client of a job received, connection by connection."""

    job_id: str
    name: str
    sittings: list[Sitting] = field(default_factory=list)
    #: It has seen the end, or was told that there is nothing more.
    done: bool = False


@dataclass(slots=True)
class Asked:
    """What became of a turn at its producer's."""

    turn: Turn
    #: Conversation and place in it: turns of one session are sent in this order.
    conversation: int
    place: int
    in_session: bool
    #: The status of every answer to its sending, in order; 0 where none came.
    answers: list[int] = field(default_factory=list)
    #: The status of the answer to the same body again, and to another one under its id.
    repeat: int | None = None
    other_body: int | None = None
    #: The job's epoch just after a wish to cancel was acknowledged.
    cancelled_in: int | None = None

    @property
    def accepted(self) -> bool:
        """Whether the producer was told that it is."""
        return any(status in (200, 202) for status in self.answers)

    @property
    def refused(self) -> bool:
        return not self.accepted and any(400 <= status < 500 for status in self.answers)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One entry of a job's log."""

    id: EventId
    event: bytes
    terminal: bool


@dataclass(slots=True)
class Evidence:
    """All of it. Tables are lists of rows by column; times are microseconds of the database's clock."""

    asked: dict[str, Asked] = field(default_factory=dict)
    clients: list[Client] = field(default_factory=list)
    jobs: dict[str, Row] = field(default_factory=dict)
    transitions: dict[str, list[Row]] = field(default_factory=dict)
    attempts: dict[str, list[Row]] = field(default_factory=dict)
    messages: dict[str, Row] = field(default_factory=dict)
    sessions: dict[str, Row] = field(default_factory=dict)
    dead_letters: dict[str, list[Row]] = field(default_factory=dict)
    #: Logs that Redis still has.
    logs: dict[str, list[LogLine]] = field(default_factory=dict)
    effects: Counter[tuple[str, str]] = field(default_factory=Counter)
    timeline: Timeline = field(default_factory=Timeline)
    #: (job, attempt) of every claim whose answer reached its worker.
    begun: set[tuple[str, int]] = field(default_factory=set)
    #: Logs of jobs that ended later than this must be whole: Redis has forgotten nothing since.
    logs_since: int = 0
    #: Processes that ended on their own, or did not end in order, in words.
    unruly: list[str] = field(default_factory=list)
    #: Statuses of 500 and above that tell nothing, with what was asked.
    bad_answers: list[str] = field(default_factory=list)
    #: What the rules of the tables say of the rows; empty if they hold.
    broken_rules: list[str] = field(default_factory=list)
