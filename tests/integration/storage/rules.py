"""What must be true of the tables after every transition, whatever was done before: read from the rows alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Connection, Table

from schemas.job_event import TERMINAL_KINDS, JobEvent
from storage.database import Database
from storage.jobs.statements import read_clock
from storage.lanes import alone_lane, is_alone
from storage.tables import attempts, dead_letters, job_bodies, jobs, lanes, messages, sessions, transitions

Row = dict[str, Any]
Cache = dict[tuple[str, tuple[Any, ...]], Row]
UNFINISHED = ("queued", "running")
#: The event each kind of transition may show, and the status it may lead to.
OUTCOMES = {
    "accept": {"queued": "queued"},
    "claim": {"started": "running"},
    "rebuild": {"snapshot": "running"},
    "finish": {"final": "finished"},
    "fail": {"retrying": "queued", "failed": "dead"},
    "defer": {"retrying": "queued", "failed": "dead"},
    "expire": {"retrying": "queued", "failed": "dead"},
    "release": {"requeued": "queued"},
    "cancel": {"cancelled": "cancelled"},
    "lapse": {"failed": "dead"},
    "redrive": {"queued": "queued"},
    "discard": {"failed": "dead"},
}
#: From which status each kind of transition may start.
ORIGINS = {
    "claim": {"queued"},
    "lapse": {"queued"},
    "cancel": {"queued", "running"},
    "redrive": {"dead"},
    "discard": {"dead"},
    **{kind: {"running"} for kind in ("rebuild", "finish", "fail", "defer", "expire", "release")},
}
_EVENT: TypeAdapter[Any] = TypeAdapter(JobEvent)


class BrokenRule(AssertionError):
    """A rule of the design does not hold."""


def require(holds: object, rule: str, *facts: object) -> None:
    if not holds:
        raise BrokenRule(f"{rule}: {', '.join(map(repr, facts))}")


@dataclass(frozen=True)
class Tables:
    """Every row that the rules speak of, at one moment."""

    now: int
    jobs: dict[str, Row]
    lanes: dict[tuple[str, str], Row]
    sessions: dict[str, Row]
    messages: dict[str, Row]
    attempts: dict[str, list[Row]]
    transitions: dict[str, list[Row]]
    dead_letters: dict[str, list[Row]]
    bodies: frozenset[str]

    @classmethod
    def read(cls, connection: Connection, cache: Cache | None = None) -> Tables:
        """Everything as it is now; rows that `cache` has seen before are the same objects again."""
        seen = {} if cache is None else cache
        return cls(
            jobs={row["id"]: row for row in _read(connection, jobs, seen)},
            lanes={(row["lane"], row["tenant"]): row for row in _read(connection, lanes, seen)},
            sessions={row["id"]: row for row in _read(connection, sessions, seen)},
            messages={row["id"]: row for row in _read(connection, messages, seen)},
            attempts=_by_job(_read(connection, attempts, seen)),
            transitions=_by_job(_read(connection, transitions, seen)),
            dead_letters=_by_job(_read(connection, dead_letters, seen)),
            bodies=frozenset(row["job_id"] for row in _read(connection, job_bodies, seen)),
            # Last, so that nothing read before it is newer.
            now=read_clock(connection),
        )


def _read(connection: Connection, table: Table, cache: Cache) -> list[Row]:
    """The rows in the order of their key, as the driver gives them: a walk reads all of them thousands of times."""
    names = [column.name for column in table.columns]
    key = ", ".join(column.name for column in table.primary_key)
    found = connection.exec_driver_sql(f"SELECT {', '.join(names)} FROM {table.name} ORDER BY {key}").all()
    rows = []
    for values in map(tuple, found):
        row = cache.get((table.name, values))
        if row is None:
            row = cache[table.name, values] = dict(zip(names, values, strict=True))
        rows.append(row)
    return rows


async def check_rules(database: Database) -> Tables:
    """Read everything and check every rule; raises BrokenRule."""
    tables = await database.read(Tables.read)
    check(tables)
    return tables


def check(tables: Tables, changed: Iterable[str] | None = None) -> None:
    """Check every rule; the dearer ones only for the jobs in `changed`, if given."""
    _check_lanes(tables)
    _check_heads(tables)
    _check_messages(tables)
    for job_id in tables.jobs if changed is None else changed:
        job = tables.jobs[job_id]
        _check_row(tables, job)
        _check_history(job, tables.transitions[job_id])
        _check_attempts(tables, job)


def _check_lanes(tables: Tables) -> None:
    running = Counter((job["lane"], job["tenant"]) for job in tables.jobs.values() if job["status"] == "running")
    for key, lane in tables.lanes.items():
        require(lane["running"] == running[key], "a lane counts its running jobs", key, lane["running"], running[key])
        require(lane["running"] <= lane["running_limit"], "a lane keeps its limit", lane)
    for job in tables.jobs.values():
        known = (job["lane"], job["tenant"]) in tables.lanes
        require(known or job["status"] not in UNFINISHED, "an unfinished job has its lane", job["lane"])
        if job["status"] == "queued" and job["head"] and job["deadline_at"] > tables.now:
            hint = tables.lanes[job["lane"], job["tenant"]]["next_due"]
            on_time = hint is not None and hint <= max(job["due_at"], tables.now)
            require(on_time, "next_due is never late", hint, job["due_at"], tables.now)


def _check_heads(tables: Tables) -> None:
    places = defaultdict(list)
    for job in tables.jobs.values():
        places[job["session_id"]].append((job["session_seq"], job))
    for session_id, placed in places.items():
        placed.sort(key=lambda place: place[0])
        numbers = [seq for seq, _ in placed]
        require(len(set(numbers)) == len(numbers), "a place is given once", numbers)
        require(numbers[-1] < tables.sessions[session_id]["next_seq"], "the next place is free", numbers)
        unfinished = [job for _, job in placed if job["status"] in UNFINISHED]
        heads = [job["id"] for _, job in placed if job["head"]]
        require(heads == [job["id"] for job in unfinished[:1]], "the first unfinished job is the one head", heads)
        running = [job["id"] for job in unfinished if job["status"] == "running"]
        require(running in ([], heads), "only a head runs", running, heads)


def _check_messages(tables: Tables) -> None:
    rooted: set[str] = set()
    for message_id in tables.messages:
        path: list[str] = []
        step: str | None = message_id
        while step is not None and step in tables.messages and step not in rooted:
            require(step not in path, "messages are a tree", path)
            path.append(step)
            step = tables.messages[step]["parent_id"]
        rooted.update(path)
    for message in tables.messages.values():
        parent = message["parent_id"] and tables.messages.get(message["parent_id"])
        require(parent is not None or message["parent_id"] is None, "a parent exists", message)
        if parent:
            require(parent["session_id"] == message["session_id"], "a parent is of the session", message)
            require(parent["placed"], "a parent has its own place", message)
    for session in tables.sessions.values():
        leaf = session["active_leaf"] and tables.messages.get(session["active_leaf"])
        require(leaf is None or leaf["session_id"] == session["id"], "the active leaf is of the session", session)
        require(leaf is None or leaf["placed"], "the active leaf has its place", session)


def _check_row(tables: Tables, job: Row) -> None:
    ended = job["status"] not in UNFINISHED
    holder = (job["worker"] is not None, job["lease_until"] is not None)
    require(set(holder) == {job["status"] == "running"}, "who runs has a lease, nobody else", job)
    require((job["ended_at"] is not None) == ended, "an end has its time", job)
    require(job["status"] != "queued" or job["cancel_reason"] is None, "what is queued is cancelled at once", job)
    require((job["outcome"] is not None) == (job["status"] == "finished"), "an answer has its outcome", job)
    alone = is_alone(job["lane"])
    require(job["lane"] in (job["queue"], alone_lane(job["queue"])), "a job stays in its queue", job)
    require(not alone or job["lost_in_company"] == 2 <= job["failures"], "only the twice lost run alone", job)
    require(job["failures"] <= 2 + alone - (not ended), "the second failure is the last", job)
    require(job["held_by"] is None or job["status"] == "queued", "only who waits is held", job)
    letters = [one for one in tables.dead_letters[job["id"]] if one["resolution"] is None]
    discarded = [one for one in tables.dead_letters[job["id"]] if one["resolution"] == "discarded"]
    require(len(letters + discarded) == (job["status"] == "dead"), "the dead have one dead letter", job, letters)
    require(all(one["epoch"] == job["epoch"] for one in letters), "a letter lies at its job's epoch", job, letters)
    require(all(one["epoch"] == job["epoch"] - 1 for one in discarded), "a discarded job stays dead", job, discarded)
    for letter in tables.dead_letters[job["id"]]:
        decided = (letter["resolution"] is None) == (letter["resolved_at"] is None)
        require(decided, "a decision has its time", letter)
    require(job["id"] in tables.bodies, "a job has its body", job)
    question = tables.messages.get(job["user_message_id"])
    require(question is not None and question["role"] == "user", "a job has its user message", job)
    if question is not None and question["job_id"] == job["id"]:
        require(job["rank"] % 2 or question["placed"], "what was claimed has its place", job, question)


def _check_history(job: Row, history: list[Row]) -> None:
    epochs = sorted(step["epoch"] for step in history)
    require(epochs == list(range(job["epoch"] + 1)), "every epoch is one transition", job, epochs)
    steps = sorted(history, key=lambda step: step["epoch"])
    require(steps[0]["kind"] == "accept", "a job begins with its acceptance", steps[0])
    status = ""
    for step in steps:
        event = _EVENT.validate_json(step["event"])
        require(event.job_id == job["id"], "an event names its job", step)
        require(event.kind in OUTCOMES[step["kind"]], "a transition shows its own event", step)
        require(status in ORIGINS.get(step["kind"], {""}), "a transition starts where it may", status, step)
        require((status == "") == (step["kind"] == "accept"), "a job is accepted once", step)
        status = OUTCOMES[step["kind"]][event.kind]
        require((event.kind in TERMINAL_KINDS) == (status not in UNFINISHED), "an end is told", step)
        require(step["tenant"] == job["tenant"], "a row carries its tenant", step)
    require(status == job["status"], "the row stands where its last transition led", job, steps[-1])
    for earlier, later in pairwise(steps):
        require(earlier["at"] <= later["at"], "time runs forward", earlier, later)
        require(earlier["position"] < later["position"], "positions are in order", earlier, later)
    begun = max(place for place, step in enumerate(steps) if step["kind"] in ("accept", "redrive"))
    charged = sum(step["kind"] in ("fail", "expire") for step in steps[begun:])
    require(job["failures"] == charged, "each failure is charged once", job, charged)
    releases = sum(step["kind"] == "release" for step in steps[begun:])
    require(job["releases"] == releases, "each release is counted", job, releases)


def _check_attempts(tables: Tables, job: Row) -> None:
    claims = sorted(step["epoch"] for step in tables.transitions[job["id"]] if step["kind"] == "claim")
    made = tables.attempts[job["id"]]
    require([attempt["attempt"] for attempt in made] == list(range(1, job["attempt"] + 1)), "attempts count up", made)
    require([attempt["epoch"] for attempt in made] == claims, "a claim makes an attempt", made, claims)
    still_open = [attempt["attempt"] for attempt in made if attempt["ended_at"] is None]
    expected = [job["attempt"]] if job["status"] == "running" else []
    require(still_open == expected, "only the running attempt is open", made)
    for attempt in made:
        require((attempt["ending"] is None) == (attempt["ended_at"] is None), "an ended attempt says how", attempt)


def _by_job(found: list[Row]) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        grouped[row["job_id"]].append(row)
    return grouped
