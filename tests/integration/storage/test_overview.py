"""The operator's numbers are right, and cost no more when there were a million jobs before."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, insert, text, update

from schemas.chat_job import ChatJob
from schemas.ids import new_id
from storage import overview as overview_module
from storage.clock import to_us
from storage.database import Database
from storage.jobs.accept import accept
from storage.jobs.cancel import request_cancel
from storage.jobs.claim import Claim, claim
from storage.jobs.settle import fail, finish
from storage.jobs.statements import read_clock
from storage.overview import SLICE_S, SLICES, WINDOW_S, Overview, read_overview
from storage.quarantine import keep
from storage.tables import breakers, dead_letters, jobs, paused_queues, quarantine, transitions
from tests.integration.storage.acts import BROKEN, FRAMEWORK, LEASE_US, TENANT, said
from tests.integration.storage.test_query_plans import SCAN, SMALL_INDEXES, fill, plan, recorded

#: Partial too, of what is held or lies there; and the one that the throughput looks through, from a time on.
MORE_SMALL = (*SMALL_INDEXES, "ix_jobs_held", "ix_dead_letters_lying")


async def overview(database: Database, tenant: str = TENANT) -> Overview:
    return await database.read(read_overview, tenant)


def accepted(connection: Connection, queue: str = "chat", **fields: Any) -> str:
    return accept(connection, ChatJob(message="hello", queue=queue, **fields), FRAMEWORK).job_id


def claimed(connection: Connection, queue: str = "chat") -> Claim:
    found = claim(connection, queue, "w", LEASE_US)
    assert found is not None
    return found


async def test_an_empty_database_has_nothing_to_tell(database: Database) -> None:
    found = await overview(database)
    assert (found.queues, found.breakers, found.failures) == ({}, [], [])
    assert (found.dead_letters, found.quarantine) == (0, 0)
    assert sum(found.throughput.finished) == 0
    assert WINDOW_S - SLICE_S <= found.covers_s <= WINDOW_S


async def test_queues_tell_what_waits_what_is_due_and_what_runs(database: Database) -> None:
    def prepare(connection: Connection) -> None:
        first = accept(connection, ChatJob(message="one"), FRAMEWORK)
        # Behind another job of its session: queued, but not due.
        accept(connection, ChatJob(message="two", session_id=first.session_id), FRAMEWORK)
        for _ in range(3):
            accepted(connection)
        claimed(connection)
        later = accepted(connection, "bulk")
        connection.execute(update(jobs).where(jobs.c.id == later).values(due_at=jobs.c.due_at + to_us(60)))
        connection.execute(
            insert(paused_queues).values(queue="night", reason="for the night", paused_at=read_clock(connection))
        )

    await database.write(prepare)
    queues = (await overview(database)).queues
    assert list(queues) == ["bulk", "chat", "night"]
    chat, bulk, night = queues["chat"], queues["bulk"], queues["night"]
    assert (chat.queued, chat.due, chat.running, chat.paused_at) == (4, 3, 1, None)
    assert chat.oldest_due_at is not None
    assert (bulk.queued, bulk.due, bulk.oldest_due_at) == (1, 0, None)
    assert (night.queued, night.pause_reason) == (0, "for the night")


async def test_a_job_that_must_run_alone_is_counted_with_its_queue(database: Database) -> None:
    def prepare(connection: Connection) -> None:
        job_id = accepted(connection)
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(lane="chat.alone"))

    await database.write(prepare)
    queues = (await overview(database)).queues
    assert list(queues) == ["chat"]
    assert (queues["chat"].queued, queues["chat"].due) == (1, 1)


async def test_the_throughput_tells_finished_dead_retried_and_cancelled_apart(database: Database) -> None:
    def prepare(connection: Connection) -> None:
        accepted(connection)
        one = claimed(connection)
        finish(connection, one.job_id, one.epoch, said("x"), None)
        accepted(connection)
        two = claimed(connection)
        fail(connection, two.job_id, two.epoch, BROKEN, delay_us=0)
        two = claimed(connection)
        fail(connection, two.job_id, two.epoch, BROKEN, delay_us=0)
        request_cancel(connection, TENANT, accepted(connection), "user")
        # Long ago: not counted.
        old = {"tenant": TENANT, "xid": 1, "job_id": new_id(), "epoch": 2, "kind": "finish", "event": "{}"}
        connection.execute(insert(transitions).values(**old, at=read_clock(connection) - to_us(WINDOW_S + 5)))
        earlier = {**old, "job_id": new_id(), "at": read_clock(connection) - to_us(100)}
        connection.execute(insert(transitions).values(**earlier))

    await database.write(prepare)
    lately = (await overview(database)).throughput
    assert [sum(counts) for counts in (lately.finished, lately.dead, lately.retried, lately.cancelled)] == [2, 1, 1, 1]
    assert sum(lately.finished[-7:]) == 1
    assert len(lately.finished) == SLICES


async def test_what_is_too_much_to_count_shortens_the_time_that_is_told(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview_module, "LATELY_MOST", 3)

    def prepare(connection: Connection) -> None:
        now = read_clock(connection)
        row = {"tenant": TENANT, "xid": 1, "epoch": 2, "kind": "finish", "event": "{}"}
        rows = [{**row, "job_id": new_id(), "at": now - to_us(20 * place)} for place in range(10)]
        connection.execute(insert(transitions), rows)

    await database.write(prepare)
    found = await overview(database)
    assert sum(found.throughput.finished) == 3
    assert 40 <= found.covers_s < 60


async def test_open_breakers_are_told_with_the_jobs_they_hold(database: Database) -> None:
    def prepare(connection: Connection) -> None:
        now = read_clock(connection)
        shut = {"failures": 1, "opened_at": None, "probe_at": None, "pause_us": 1, "updated_at": now}
        opened = {**shut, "failures": 5, "opened_at": now, "probe_at": now + to_us(30)}
        connection.execute(insert(breakers), [{**shut, "name": "shut"}, {**opened, "name": "openai gpt"}])
        for _ in range(2):
            held = accepted(connection)
            connection.execute(update(jobs).where(jobs.c.id == held).values(held_by="openai gpt"))

    await database.write(prepare)
    (breaker,) = (await overview(database)).breakers
    assert (breaker["name"], breaker["failures"], breaker["held"]) == ("openai gpt", 5, 2)


async def test_failures_are_the_tenants_own_and_what_lies_there_is_everybodys(database: Database) -> None:
    def prepare(connection: Connection) -> list[str]:
        keep(connection, "chat", "not a message", b"x")
        now = read_clock(connection)
        resolved = {"id": new_id(), "tenant": TENANT, "queue": "chat", "reason": "r", "payload": b"", "created_at": now}
        connection.execute(insert(quarantine).values(**resolved, resolution="dropped", resolved_at=now))
        dead = []
        for tenant in (TENANT, TENANT, "other"):
            job_id = accepted(connection, tenant=tenant)
            one = claimed(connection)
            useless = BROKEN.model_copy(update={"retryable": False})
            fail(connection, one.job_id, one.epoch, useless, delay_us=0)
            dead.append(job_id)
        connection.execute(
            update(dead_letters).where(dead_letters.c.job_id == dead[0]).values(resolution="discarded", resolved_at=now)
        )
        return dead

    dead = await database.write(prepare)
    found = await overview(database)
    assert (found.dead_letters, found.quarantine) == (2, 1)
    assert [failure["job_id"] for failure in found.failures] == [dead[1], dead[0]]
    assert found.failures[1]["resolution"] == "discarded"
    assert [failure["job_id"] for failure in (await overview(database, "other")).failures] == [dead[2]]


async def test_no_statement_of_the_overview_reads_what_has_ended(database: Database) -> None:
    def explain(connection: Connection) -> dict[str, str]:
        fill(connection)
        lying = {"tenant": TENANT, "queue": "chat", "epoch": 2, "error": {}, "created_at": 1}
        letters = [{**lying, "id": new_id(), "job_id": new_id(), "resolution": "redriven"} for _ in range(3000)]
        connection.execute(insert(dead_letters), letters)
        connection.execute(text("ANALYZE"))
        with recorded(connection) as seen:
            read_overview(connection, TENANT)
        return {statement: plan(connection, statement, parameters) for statement, parameters in seen}

    plans = await database.write(explain)
    assert len(plans) == 10
    for statement, found in plans.items():
        assert not reads_what_ended(found), f"{statement}\n\nreads a table from end to end:\n{found}"


def reads_what_ended(found: str) -> bool:
    lines = found.replace("dead_letters", "jobs").splitlines()
    for number, line in enumerate(lines):
        scan = SCAN.search(line)
        if (
            scan is None
            or (scan["index"] or scan["pg"] or "").replace("jobs_lying", "dead_letters_lying") in MORE_SMALL
        ):
            continue
        below = "".join(lines[number + 1 : number + 3])
        if scan["kind"] in ("SCAN", "Seq Scan") or "Index Cond" not in below:
            return True
    return False
