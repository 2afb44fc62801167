"""A seeded random walk over every transition: workers that lose replies and come back late, a check after each step.

Each step says beforehand what it must change, read from the rows as they are and from the rules of the design; whatever
else has changed is a fault. Counters tell which of the rare paths were met.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sqlalchemy import Connection, or_, update

from schemas.agent_message import AgentMessage
from schemas.chat_job import ChatJob
from schemas.errors import TransitionRefused
from storage.clock import now_us, to_us
from storage.database import Database
from storage.jobs.claim import Claim
from storage.lanes import alone_lane
from storage.tables import jobs, lanes
from tests.integration.storage.acts import pass_time
from tests.integration.storage.rules import UNFINISHED, Cache, Row, Tables, check, require

TENANTS = ("a", "b", "narrow")
QUEUES = ("chat", "bulk")
#: What may be claimed from: the queues, and beside each the lane of its jobs that run alone.
LANES = (*QUEUES, *map(alone_lane, QUEUES))
#: Models whose provider may fail; None stands for the worker's default.
MODELS = (None, "shaky")
WORKERS = ("w1", "w2", "w3")
#: What a transition may change besides what a step announces.
MAY_CHANGE = frozenset(
    {"due_at", "lease_until", "worker", "rank", "started_at", "ended_at", "error_code", "outcome", "user_message_id"}
    | {"held_by"}
)
#: Attempts that a worker still believes in, though somebody else may have the job by now.
REMEMBERED = 15


@dataclass
class Held:
    """What a worker believes of one of its attempts."""

    claim: Claim
    worker: str
    epoch: int


@dataclass
class Change:
    """What a step must do to the rows, and nothing else."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    new_jobs: int = 0
    gone_sessions: set[str] = field(default_factory=set)
    #: session → True if its active leaf moves.
    leaf_moves: set[str] = field(default_factory=set)
    #: Messages that may get their place.
    placed: set[str] = field(default_factory=set)
    #: Messages that lose their place, to be asked anew.
    unplaced: set[str] = field(default_factory=set)
    new_messages: int = 0


NOTHING = Change()
#: Of a field whose new value a step does not know.
ANYTHING = object()
Step = Callable[[], Awaitable[Change]]


class Walk:
    """`steps` names each step with its weight; a subclass adds them."""

    steps: ClassVar[dict[str, int]] = {}

    def __init__(self, database: Database, seed: int) -> None:
        self.database = database
        self.rng = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.held: list[Held] = []
        self.known: list[ChatJob] = []
        #: Queues that are paused.
        self.paused: set[str] = set()
        self.tables = Tables(0, {}, {}, {}, {}, {}, {}, {}, frozenset())
        self._cache: Cache = {}

    async def run(self, steps: int, meet: Sequence[str] = (), most: int = 0) -> None:
        """Take so many steps, then up to `most` in all until every path in `meet` was met.

        Raises BrokenRule at the first step that breaks a rule, and where a path was not met.
        """
        self.tables = await self.read()
        names, weights = list(self.steps), list(self.steps.values())
        for number in range(max(steps, most)):
            if number >= steps and all(self.seen[path] for path in meet):
                break
            (name,) = self.rng.choices(names, weights)
            try:
                await self._take(getattr(self, name))
            except AssertionError as error:
                error.add_note(f"in step {number}: {name}")
                raise
        missed = [path for path in meet if not self.seen[path]]
        require(not missed, "every rare path is met", missed, self.seen)

    async def read(self) -> Tables:
        return await self.database.read(Tables.read, self._cache)

    async def _take(self, step: Step) -> None:
        before = self.tables
        change = await step()
        after = self.tables = await self.read()
        if change is not SHIFTED:
            compare(before, after, change)
        check(after, [job_id for job_id, job in after.jobs.items() if job is not before.jobs.get(job_id)])

    # What steps choose from

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def any_job(self, *statuses: str) -> Row | None:
        found = [job for job in self.tables.jobs.values() if not statuses or job["status"] in statuses]
        return self.rng.choice(found) if found else None

    def any_held(self, prefer: Callable[[Row], object] = bool) -> Held | None:
        """Mostly an attempt that really has its job, sometimes one that only believes so."""
        good = [one for one in self.held if self.holds(one)]
        preferred = [one for one in good if prefer(self.tables.jobs[one.claim.job_id])]
        if preferred and self.chance(0.7):
            return self.rng.choice(preferred)
        if good and self.chance(0.6):
            return self.rng.choice(good)
        overtaken = [one for one in self.held if not self.holds(one) and self.is_running(one)]
        found = overtaken if overtaken and self.chance(0.5) else self.held
        return self.rng.choice(found) if found else None

    def is_running(self, held: Held) -> bool:
        """Whether its job runs, under whatever epoch."""
        job = self.tables.jobs.get(held.claim.job_id)
        return job is not None and job["status"] == "running"

    def holds(self, held: Held) -> bool:
        job = self.tables.jobs.get(held.claim.job_id)
        return job is not None and job["status"] == "running" and job["epoch"] == held.epoch

    def remember(self, held: Held) -> None:
        self.held.append(held)
        stale = [one for one in self.held if not self.holds(one) and one is not held]
        for one in stale[:-REMEMBERED] if len(stale) > REMEMBERED else ():
            self.held.remove(one)

    def text(self) -> list[AgentMessage]:
        return [AgentMessage.assistant(f"text {self.rng.random()}") for _ in range(self.rng.choice((1, 1, 3)))]

    # What a transition must do

    async def expect_refusal(self, name: str, doing: Awaitable[Any]) -> Change:
        try:
            await doing
        except TransitionRefused:
            self.seen[f"{name} refused"] += 1
            return NOTHING
        require(False, "an older epoch, or an untimely one, is refused", name)
        return NOTHING

    def left(self, job: Row, status: str, said: int = 0, **fields: Any) -> Change:
        """The change of a transition that takes `job` to `status`, its heir included; `said` messages are saved."""
        ended = status not in UNFINISHED
        expected = {"status": status, "epoch": job["epoch"] + 1, **fields, "head": job["head"] and not ended}
        change = Change(jobs={job["id"]: expected}, new_messages=said)
        if said:
            change.leaf_moves.add(job["session_id"])
        heir = self.heir_of(job) if ended and job["head"] else None
        if heir is not None:
            change.jobs[heir["id"]] = {"head": True}
            self.seen["heir"] += 1
            self.seen["heir in another lane"] += heir["lane"] != job["lane"]
        return change

    def heir_of(self, job: Row) -> Row | None:
        waiting = [
            other
            for other in self.tables.jobs.values()
            if other["session_id"] == job["session_id"]
            and other["session_seq"] > job["session_seq"]
            and other["status"] in UNFINISHED
        ]
        return min(waiting, key=lambda other: other["session_seq"], default=None)

    # Steps that are no transitions

    async def let_time_pass(self) -> Change:
        seconds = self.rng.choice((0.5, 2, 2, 5, 16, -3))

        def shift(connection: Connection) -> None:
            # What is past its deadline is nobody's to claim any more, also if the clock steps back: it lapses.
            past = update(jobs).where(jobs.c.deadline_at <= now_us())
            connection.execute(past.values(deadline_at=jobs.c.deadline_at - max(0, to_us(-seconds))))
            pass_time(connection, seconds)

        await self.database.write(shift)
        return SHIFTED

    async def spoil_a_hint(self) -> Change:
        """A hint may be early: the next claim must find out and look on."""
        early = self.tables.now - to_us(1)
        tenant = self.rng.choice(TENANTS)

        def spoil(connection: Any) -> None:
            later = or_(lanes.c.next_due.is_(None), lanes.c.next_due > early)
            connection.execute(update(lanes).where(lanes.c.tenant == tenant, later).values(next_due=early))

        await self.database.write(spoil)
        self.seen["hint spoilt"] += 1
        return NOTHING


def unfinished(job: Row) -> bool:
    return job["status"] in UNFINISHED


#: After time has passed every row has moved.
SHIFTED = Change()


def compare(before: Tables, after: Tables, change: Change) -> None:
    """Require that the step changed what it announced and nothing else."""
    gone = {job_id for job_id, job in before.jobs.items() if job["session_id"] in change.gone_sessions}
    require(before.jobs.keys() - after.jobs.keys() == gone, "only a deleted session's jobs go", gone)
    new = after.jobs.keys() - before.jobs.keys()
    require(len(new) == change.new_jobs, "only an acceptance makes a job", new)
    for job_id in after.jobs.keys() & before.jobs.keys():
        old, now = before.jobs[job_id], after.jobs[job_id]
        expected = change.jobs.get(job_id)
        if expected is None:
            require(old is now or old == now, "nobody else's job changes", old, now)
            continue
        for name, value in now.items():
            if name in expected:
                as_expected = expected[name] is ANYTHING or value == expected[name]
                require(as_expected, f"{name} becomes what it must", expected, old, now)
            elif name not in MAY_CHANGE:
                require(value == old[name], f"{name} stays", old, now)
        steps = now["epoch"] - old["epoch"]
        made = len(after.transitions[job_id]) - len(before.transitions[job_id])
        require(steps == made, "a transition writes one row", old, now)
    _compare_messages(before, after, change)


def _compare_messages(before: Tables, after: Tables, change: Change) -> None:
    new = after.messages.keys() - before.messages.keys()
    require(len(new) == change.new_messages, "only an acceptance and an answer make messages", len(new), change)
    for message_id in after.messages.keys() & before.messages.keys():
        old, now = before.messages[message_id], after.messages[message_id]
        if old is not now and old != now and message_id in change.unplaced:
            require((now["placed"], now["parent_id"]) == (False, None), "a message is asked anew", old, now)
        elif old is not now and old != now:
            require(message_id in change.placed, "only a first claim places a message", old, now)
            leaf = before.sessions[now["session_id"]]["active_leaf"]
            require((now["placed"], now["parent_id"]) == (True, leaf), "it is placed under the active leaf", old, now)
            require(not old["placed"], "a place is given once", old, now)
    require(
        all(
            before.messages[one]["session_id"] in change.gone_sessions
            for one in before.messages.keys() - after.messages
        ),
        "messages stay",
    )
    for session_id in after.sessions.keys() & before.sessions.keys():
        moved = before.sessions[session_id]["active_leaf"] != after.sessions[session_id]["active_leaf"]
        require(moved == (session_id in change.leaf_moves), "only an answer moves the active leaf", session_id, change)
        if moved:
            require(after.sessions[session_id]["active_leaf"] in new, "it moves to the new message", session_id)
