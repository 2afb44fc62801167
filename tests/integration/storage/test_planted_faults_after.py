"""The same for breakers, pauses, interrupts, redrive and retention.

What the walk meets too rarely is found by the one test that is about it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import bindparam, delete, literal, select, update
from sqlalchemy.exc import IntegrityError

from schemas.errors import Conflict
from storage import breakers, retention, tables
from storage.clock import now_us
from storage.database import Database
from storage.jobs import accept, claim, hold_back, interrupt, redrive, settle
from storage.tables import dead_letters, jobs
from tests.integration.storage import test_breakers, test_interrupt, test_queues, test_redrive
from tests.integration.storage.after_walk import AfterWalk
from tests.integration.storage.rules import BrokenRule

Plant = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[Database], Awaitable[None]]
FAULTS: dict[str, Plant] = {}


DIRECTED: dict[str, tuple[Plant, Check]] = {}


def fault(plant: Plant) -> Plant:
    FAULTS[plant.__name__] = plant
    return plant


def fault_found_by(check: Check) -> Callable[[Plant], Plant]:
    def keep(plant: Plant) -> Plant:
        DIRECTED[plant.__name__] = plant, check
        return plant

    return keep


@fault
def a_probe_is_not_the_only_one(patch: pytest.MonkeyPatch) -> None:
    anyone = update(tables.breakers).where(breakers._NAME, tables.breakers.c.opened_at.is_not(None))
    begin = anyone.values(probe_at=bindparam("now"), probe_job=bindparam("job")).where(bindparam("give_up") > 0)
    patch.setattr(breakers, "_BEGIN_PROBE", begin)
    patch.setattr(claim, "held_until", lambda *_: None)


@fault
def a_breaker_charges_whom_it_holds(patch: pytest.MonkeyPatch) -> None:
    alike = update(jobs).where(jobs.c.id.in_(hold_back._ALIKE), jobs.c.status == "queued")
    values = {"due_at": bindparam("due"), "held_by": bindparam("holder"), "failures": jobs.c.failures + 1}
    patch.setattr(hold_back, "_POSTPONE_ALIKE", alike.values(values))


@fault
def a_breaker_holds_everybody(patch: pytest.MonkeyPatch) -> None:
    everybody = update(jobs).where(jobs.c.lane == bindparam("the_lane"), jobs.c.tenant == bindparam("the_tenant"))
    unused = bindparam("framework") != "", bindparam("the_model", type_=jobs.c.model.type).is_not_distinct_from("shaky")
    held = everybody.where(jobs.c.status == "queued", jobs.c.due_at <= bindparam("now"), *unused)
    patch.setattr(hold_back, "_POSTPONE_ALIKE", held.values(due_at=bindparam("due"), held_by=bindparam("holder")))


@fault_found_by(test_breakers.test_who_was_held_is_due_once_the_breaker_closes)
def a_breaker_never_lets_go(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(breakers, "_FREED", breakers._FREED.where(literal(False)))


@fault_found_by(test_breakers.test_who_was_held_is_due_once_the_breaker_closes)
def who_is_let_go_is_not_due(patch: pytest.MonkeyPatch) -> None:
    free = update(jobs).where(jobs.c.id == bindparam("the_job"), bindparam("now") > 0)
    patch.setattr(breakers, "_FREE", free.values(held_by=None))


@fault_found_by(test_breakers.test_who_was_held_is_due_once_the_breaker_closes)
def a_breaker_lets_go_without_telling_the_lane(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(breakers, "work_is_due", lambda *_: None)


@fault
def a_breaker_never_opens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(breakers, "_COUNT", breakers._COUNT.values(opened_at=None, probe_at=None))


@fault
def a_claim_ignores_a_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "_FREE_LANE", _lane_of_any_queue())


def _lane_of_any_queue() -> Any:
    with pytest.MonkeyPatch.context() as inner:
        inner.setattr(claim, "not_paused", lambda queue: queue != "")
        return claim._next_lane(tables.lanes, tables.lanes.c.tenant, now_us().label("now"))


@fault_found_by(test_queues.test_the_lane_of_jobs_that_run_alone_is_paused_with_its_queue)
def a_pause_is_only_of_the_lane_with_its_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "queue_of", lambda lane: lane)


@fault_found_by(test_interrupt.test_none_of_those_that_are_stopped_is_ever_the_head)
def an_interrupt_cancels_from_the_front(patch: pytest.MonkeyPatch) -> None:
    forwards = interrupt._UNFINISHED_JOBS.order_by(None).order_by(jobs.c.session_seq)
    patch.setattr(interrupt, "_UNFINISHED_JOBS", forwards)


@fault
def an_interrupt_leaves_alone_what_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(interrupt, "_FLAG", interrupt._FLAG.where(literal(False)))


@fault
def an_interrupt_leaves_alone_what_waits(patch: pytest.MonkeyPatch) -> None:
    running = interrupt._UNFINISHED_JOBS.where(jobs.c.status == "running")
    patch.setattr(interrupt, "_UNFINISHED_JOBS", running)


@fault_found_by(test_interrupt.test_a_wish_to_stop_from_before_keeps_its_reason)
def an_interrupt_hides_an_earlier_reason(patch: pytest.MonkeyPatch) -> None:
    always = update(jobs).where(jobs.c.id == bindparam("the_job"), jobs.c.status == "running")
    patch.setattr(interrupt, "_FLAG", always.values(cancel_reason=interrupt.REASON))


@fault
def reject_waits_all_the_same(patch: pytest.MonkeyPatch) -> None:
    join = accept._join_session

    def enqueue(connection: Any, job: Any, *rest: Any) -> Any:
        change = {"if_busy": "enqueue"} if job.if_busy == "reject" else {}
        return join(connection, job.model_copy(update=change), *rest)

    patch.setattr(accept, "_join_session", enqueue)


@fault
def isolation_ignores_the_company(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settle, "_had_company", lambda *_: True)


@fault
def a_redrive_keeps_the_failures(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(redrive, "_REOPEN", redrive._REOPEN.values(failures=jobs.c.failures))


@fault
def a_redrive_keeps_its_old_place(patch: pytest.MonkeyPatch) -> None:
    kept = redrive._REOPEN.values(session_seq=jobs.c.session_seq).where(bindparam("place") > 0)
    patch.setattr(redrive, "_REOPEN", kept)


@fault
def a_redriven_job_is_always_the_head(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(redrive, "BUSY", select(literal(False)).where(bindparam("session") != ""))


@fault_found_by(partial(test_redrive.test_what_is_decided_stays_decided, first=redrive.discard, second=redrive.redrive))
def a_letter_is_decided_about_twice(patch: pytest.MonkeyPatch) -> None:
    read = redrive._read

    def as_if_undecided(connection: Any, tenant: str, letter_id: str) -> Any:
        try:
            return read(connection, tenant, letter_id)
        except Conflict:
            reopened = update(dead_letters).where(dead_letters.c.id == letter_id).values(resolution=None)
            connection.execute(reopened)
            return read(connection, tenant, letter_id)

    patch.setattr(redrive, "_read", as_if_undecided)


@fault
def retention_takes_an_undecided_letter(patch: pytest.MonkeyPatch) -> None:
    dead = select(dead_letters.c.job_id).where(bindparam("keep") >= 0).limit(bindparam("most"))
    patch.setattr(retention, "_DISCARDED_JOBS", dead)


@fault
def retention_takes_what_is_unfinished(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention, "_OLD_JOBS", select(jobs.c.id).where(bindparam("keep") >= 0).limit(bindparam("most")))
    some = jobs.c.id.in_(bindparam("ids", expanding=True))
    of_any_status = select(jobs.c.id, jobs.c.session_id, tables.sessions.c.hidden).where(some)
    joined = of_any_status.outerjoin_from(jobs, tables.sessions, tables.sessions.c.id == jobs.c.session_id)
    patch.setattr(retention, "_LOCK", joined)


@fault
def retention_leaves_the_transitions(patch: pytest.MonkeyPatch) -> None:
    kept = [one for one in retention._DELETE_OF_JOBS if one.table is not tables.transitions]
    patch.setattr(retention, "_DELETE_OF_JOBS", tuple(kept))


@fault
def retention_takes_the_session_of_others(patch: pytest.MonkeyPatch) -> None:
    every = select(tables.sessions.c.id).where(tables.sessions.c.id.in_(bindparam("ids", expanding=True)))
    patch.setattr(retention, "_WITHOUT_JOBS", every)
    visible = retention._LOCK.with_only_columns(jobs.c.id, jobs.c.session_id, literal(True).label("hidden"))
    locked = select(jobs.c.session_id).where(jobs.c.id.in_(bindparam("ids", expanding=True)))
    patch.setattr(retention, "_LOCK", visible)
    patch.setattr(retention, "_LOCK_HIDDEN", locked)
    patch.setattr(retention, "_DELETE_MESSAGES", delete(tables.messages).where(literal(False)))


@pytest.fixture(autouse=True)
def few_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "MAX_RELEASES", 1)


@pytest.mark.parametrize("name", FAULTS)
async def test_the_walk_finds(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    FAULTS[name](monkeypatch)
    # A KeyError is how the rules meet a job whose session is gone.
    with pytest.raises((BrokenRule, IntegrityError, KeyError)):
        await AfterWalk(sqlite_database, seed=2).run(3000)


@pytest.mark.parametrize("name", DIRECTED)
async def test_the_test_about_it_finds(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plant, check = DIRECTED[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await check(sqlite_database)
