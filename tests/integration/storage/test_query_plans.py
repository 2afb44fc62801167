"""Every statement of a transition is a search in an index, however many jobs there were before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, text

from schemas.chat_job import ChatJob
from schemas.ids import new_id
from storage import breakers, queues, retention
from storage.clock import to_us
from storage.database import CommitAndRunAgain, Database
from storage.dead_letters import lying_after
from storage.jobs.accept import accept
from storage.jobs.cancel import request_cancel
from storage.jobs.claim import claim
from storage.jobs.lease import renew
from storage.jobs.reconcile import expired_jobs, lapsed_jobs, moved_jobs, overdue_lanes
from storage.jobs.redrive import redrive
from storage.jobs.selection import count_unfinished, unfinished_after
from storage.jobs.settle import expire, fail, finish, lapse, rebuild
from storage.jobs.statements import read_clock
from storage.jobs.views import find_transition, find_transitions, get_job, job_states, list_jobs
from storage.messages import read_branch
from storage.tables import attempts, job_bodies, jobs, lanes, messages, sessions, transitions
from tests.integration.storage.acts import BROKEN, FRAMEWORK, LEASE_US, TENANT, pass_time, said

FINISHED = 3000
QUEUED = 1000
OTHER_TENANTS = 200
#: Tables that grow with every job that ever was.
GROWING = ("jobs", "job_bodies", "messages", "sessions", "transitions", "attempts")
#: Partial, of what is queued or running now.
SMALL_INDEXES = ("ix_jobs_running", "ix_jobs_unfinished", "ix_jobs_claim", "ix_jobs_deadline", "ix_jobs_held")
SCAN = re.compile(
    rf"(?P<kind>SCAN|Seq Scan|Index Scan|Index Only Scan)( using (?P<pg>\w+))?( on)? (?P<table>{'|'.join(GROWING)})\b"
    r"( USING (COVERING )?INDEX (?P<index>\w+))?"
)
SORT = re.compile(r"\bSort\b|TEMP B-TREE")
#: What this file writes to move the clock.
OF_THE_TEST = ("UPDATE jobs SET due_at=", "UPDATE lanes SET next_due=(lanes.next_due -")
#: Reads that sort the few rows they found: a branch by its depth, what is running by its lease, what moved by its time,
#: what is unfinished by its id; of dead letters there are a few only.
MAY_SORT = (
    *("WITH RECURSIVE branch", "status = 'running'", "lately", "found", "FROM lanes", "FROM dead_letters"),
    *("FROM rounds", "FROM tool_calls"),  # of one job
    *("session_seq DESC", "FROM breakers LEFT OUTER JOIN"),  # what is unfinished in one session; all breakers
)


def fill(connection: Connection) -> None:
    """Finished jobs by the thousand, and a crowd of queued ones of other tenants."""
    made: dict[Any, list[dict[str, Any]]] = {table: [] for table in (sessions, messages, jobs, job_bodies, transitions)}
    made[attempts], made[lanes] = [], []
    for number in range(FINISHED + QUEUED):
        ended = number < FINISHED
        job_id, session_id, message_id = new_id(), new_id(), new_id()
        tenant = TENANT if ended else f"t{number % OTHER_TENANTS}"
        about = {"tenant": tenant, "created_at": number}
        made[sessions].append(
            {**about, "id": session_id, "agent_framework": "echo", "parameters": {}, "metadata": {}, "updated_at": 1}
        )
        placed = {"placed": True, "role": "user", "content": "x" * 80, "status": "complete"}
        made[messages].append({**about, **placed, "id": message_id, "session_id": session_id, "job_id": job_id})
        place = {"session_id": session_id, "session_seq": 1, "user_message_id": message_id}
        state = {"head": not ended, "status": "finished" if ended else "queued", "epoch": 2 if ended else 0}
        times = {"rank": -1, "due_at": number, "deadline_at": 10**16 + number}
        made[jobs].append(
            {**about, **place, **state, **times, "id": job_id, "queue": "chat", "lane": "chat", "agent_framework": "e"}
        )
        made[job_bodies].append({"job_id": job_id, "tenant": tenant, "body": {}, "digest": "d"})
        moved = {"tenant": tenant, "job_id": job_id, "epoch": 0, "kind": "accept", "xid": 1}
        made[transitions].append({**moved, "at": number, "event": "{}"})
        made[attempts].append(
            {"job_id": job_id, "attempt": 1, "tenant": tenant, "epoch": 1, "worker": "w", "started_at": 1}
        )
    for number in range(OTHER_TENANTS):
        busy = {"running": 5, "running_limit": 9, "last_served": number, "next_due": 1}
        made[lanes].append({"lane": "chat", "tenant": f"t{number}", **busy})
    for table, new in made.items():
        connection.execute(insert(table), new)
    connection.execute(text("ANALYZE"))


@contextmanager
def recorded(connection: Connection) -> Iterator[list[tuple[str, Any]]]:
    """The statements that run meanwhile, with their parameters, as the driver gets them."""
    seen: list[tuple[str, Any]] = []

    def keep(_: object, __: object, statement: str, parameters: Any, ___: object, many: bool) -> None:
        seen.append((statement, parameters[0] if many else parameters))

    event.listen(connection, "before_cursor_execute", keep)
    try:
        yield seen
    finally:
        event.remove(connection, "before_cursor_execute", keep)


def plan(connection: Connection, statement: str, parameters: Any) -> str:
    explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
    lines = connection.exec_driver_sql(explain + statement, parameters).all()
    return "\n".join(str(line[-1]) for line in lines)


def live(connection: Connection) -> None:
    """One of everything that can happen to a job."""
    opened = accept(connection, ChatJob(message="one"), FRAMEWORK)
    accept(connection, ChatJob(message="two", session_id=opened.session_id, queue="bulk"), FRAMEWORK)
    first = claim(connection, "chat", "w", LEASE_US)
    assert first is not None
    assert first.job_id == opened.job_id
    renew(connection, [(first.job_id, number) for number in range(50)], LEASE_US)
    rebuilt = rebuild(connection, first.job_id, first.epoch, "", [])
    read_branch(connection, TENANT, first.session_id, first.user_message_id)
    finish(connection, first.job_id, rebuilt.epoch, said("x"), None)
    second = claim(connection, "bulk", "w", LEASE_US)
    assert second is not None
    fail(connection, second.job_id, second.epoch, BROKEN, delay_us=to_us(60))
    with pytest.raises(CommitAndRunAgain):
        claim(connection, "bulk", "w", LEASE_US)
    assert claim(connection, "bulk", "w", LEASE_US) is None
    assert request_cancel(connection, TENANT, second.job_id, "user").result == "cancelled"
    third = accept(connection, ChatJob(message="three", deadline_s=5), FRAMEWORK)
    accept(connection, ChatJob(message="four", deadline_s=60), FRAMEWORK)
    assert claim(connection, "chat", "w", LEASE_US) is not None
    pass_time(connection, 16)
    overdue_lanes(connection, 0, 10)
    for stale in expired_jobs(connection, 10):
        expire(connection, stale.job_id, stale.epoch)
    for stale in lapsed_jobs(connection, 10):
        lapse(connection, stale.job_id, stale.epoch)
    moved_jobs(connection, read_clock(connection) - to_us(1), 10)
    for letter in lying_after(connection, TENANT, {}, read_clock(connection), None, 10):
        redrive(connection, TENANT, letter)
    count_unfinished(connection, TENANT, {"queue": "chat"}, read_clock(connection))
    unfinished_after(connection, TENANT, {}, read_clock(connection), new_id(), 10)
    held_and_let_go(connection)
    interrupted(connection)
    connection.execute(text("UPDATE jobs SET ended_at = 1 WHERE status = 'finished' AND id < '00'"))
    retention.remove_jobs(connection, retention.old_jobs(connection, to_us(60), 10) or [third.job_id])
    retention.remove_decided(connection, to_us(60))
    find_transition(connection, third.job_id, 1)
    find_transitions(connection, [(third.job_id, 0), (first.job_id, 1), (second.job_id, 1)])
    get_job(connection, TENANT, third.job_id)
    job_states(connection, [new_id() for _ in range(50)])
    list_jobs(connection, TENANT, limit=20)


def held_and_let_go(connection: Connection) -> None:
    """Jobs of a provider that fails: held, probed for, and let go; and a queue that is paused meanwhile."""
    rules = breakers.BreakerRules(threshold=1, pause_us=to_us(60), longest_pause_us=to_us(60))
    held = [accept(connection, ChatJob(message="held", model="m", queue="held"), FRAMEWORK).job_id for _ in range(3)]
    queues.pause(connection, "held")
    assert claim(connection, "held", "w", LEASE_US) is None
    queues.resume(connection, "held")
    assert breakers.record_failure(connection, "b", "nobody", BROKEN, rules)
    for _ in range(2):  # it is held, and the lane has nothing else
        with pytest.raises(CommitAndRunAgain):
            claim(connection, "held", "w", LEASE_US, lambda *_: "b")
    assert claim(connection, "held", "w", LEASE_US, lambda *_: "b") is None
    breakers.end_probe(connection, "b", held[0])
    breakers.known(connection)
    breakers.list_breakers(connection)
    assert not breakers.held_jobs(connection, 10)
    assert breakers.record_success(connection, "b")
    assert len(breakers.held_jobs(connection, 10)) == 3
    assert breakers.release_held(connection, 10) == {"held": 3}


def interrupted(connection: Connection) -> None:
    """A message that makes way for itself."""
    opened = accept(connection, ChatJob(message="one", queue="busy"), FRAMEWORK)
    accept(connection, ChatJob(message="two", queue="busy", session_id=opened.session_id), FRAMEWORK)
    assert claim(connection, "busy", "w", LEASE_US) is not None
    new = ChatJob(message="rather this", queue="busy", session_id=opened.session_id, if_busy="interrupt")
    stopped = accept(connection, new, FRAMEWORK).interrupted
    assert (len(stopped.cancelled), len(stopped.stopping)) == (1, 1)


async def test_every_statement_of_a_transition_is_a_search(database: Database) -> None:
    await database.write(fill)

    def explain(connection: Connection) -> dict[str, str]:
        with recorded(connection) as seen:
            live(connection)
        wanted = [one for one in seen if not one[0].startswith(("BEGIN", "INSERT", *OF_THE_TEST))]
        return {statement: plan(connection, statement, parameters) for statement, parameters in wanted}

    plans = await database.read(explain)
    assert len(plans) > 30
    for statement, found in plans.items():
        assert not reads_all(found), f"{statement}\n\nreads a table from end to end:\n{found}"
        if not any(part in statement for part in MAY_SORT):
            assert not SORT.search(found), f"{statement}\n\nsorts:\n{found}"
    lane = [found for statement, found in plans.items() if "FROM lanes" in statement and "last_served" in statement]
    job = [found for statement, found in plans.items() if "jobs.head AND" in statement and "rank" in statement]
    hint = [found for statement, found in plans.items() if "min(jobs.due_at)" in statement]
    assert (len(lane), len(job), len(hint)) == (1 if database.dialect == "sqlite" else 2, 1, 1)
    assert all("ix_lanes_due" in found for found in lane)
    assert all("ix_jobs_claim" in found for found in job + hint)


def reads_all(found: str) -> bool:
    """Whether a growing table, or an index that grows with it, is read from end to end."""
    lines = found.splitlines()
    for number, line in enumerate(lines):
        scan = SCAN.search(line)
        if scan is None or (scan["index"] or scan["pg"]) in SMALL_INDEXES:
            continue
        # PostgreSQL says on one of the next lines what it looks for in an index.
        below = "".join(lines[number + 1 : number + 3])
        if scan["kind"] in ("SCAN", "Seq Scan") or "Index Cond" not in below:
            return True
    return False
