"""The walk's checks can fail: each of these faults, planted in the storage code, is found by it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import bindparam, func, literal, literal_column, select, update
from sqlalchemy.exc import IntegrityError

from schemas.errors import TransitionRefused
from storage.clock import now_us
from storage.database import CommitAndRunAgain, Database
from storage.jobs import accept, claim, lease, move, settle, statements
from storage.messages import insert_messages
from storage.tables import jobs, lanes, messages
from tests.integration.storage.job_walk import JobWalk
from tests.integration.storage.rules import BrokenRule

Plant = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, Plant] = {}


def fault(plant: Plant) -> Plant:
    FAULTS[plant.__name__] = plant
    return plant


def nothing(*_: Any, **__: Any) -> None:
    return None


@fault
def the_epoch_guards_nothing(patch: pytest.MonkeyPatch) -> None:
    def expect(connection: Any, query: Any, job_id: str, epoch: int, statuses: tuple[str, ...]) -> Any:
        job = connection.execute(query, {"job": job_id}).one_or_none()
        if job is None or job.status not in statuses:
            raise TransitionRefused(job_id)
        return job

    patch.setattr(move, "expect", expect)


@fault
def the_epoch_does_not_guard_a_rebuild(patch: pytest.MonkeyPatch) -> None:
    running = (jobs.c.id == bindparam("the_job")) & (jobs.c.status == "running")
    unguarded = update(jobs).where(running, bindparam("old_epoch") >= 0)
    patch.setattr(settle, "_REBUILD", unguarded.values(epoch=jobs.c.epoch + 1).returning(jobs.c.tenant))


@fault
def the_status_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    expect = move.expect
    everything = ("queued", "running", "finished", "dead", "cancelled")

    def any_status(connection: Any, query: Any, job_id: str, epoch: int, _: tuple[str, ...]) -> Any:
        return expect(connection, query, job_id, epoch, everything)

    patch.setattr(move, "expect", any_status)


@fault
def the_session_is_not_handed_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(move, "promote", nothing)


@fault
def the_session_is_handed_on_but_its_lane_is_not_told(patch: pytest.MonkeyPatch) -> None:
    def promote(connection: Any, heir: Any, now: int) -> None:
        connection.execute(statements._PROMOTE, {"the_id": heir.id})

    patch.setattr(move, "promote", promote)


@fault
def the_session_is_handed_to_the_youngest(patch: pytest.MonkeyPatch) -> None:
    youngest = statements._HEIR.order_by(None).order_by(jobs.c.session_seq.desc())
    patch.setattr(statements, "_HEIR", youngest)


@fault
def an_end_behind_the_head_hands_on_too(patch: pytest.MonkeyPatch) -> None:
    move_job = move.move_job

    def always(connection: Any, job: Any, *rest: Any) -> Any:
        return move_job(connection, SimpleNamespace(**{**job._mapping, "head": True}), *rest)

    for module in (move, settle):
        patch.setattr(module, "move_job", always)


@fault
def every_new_job_is_a_head(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(accept, "BUSY", select(literal(False)).where(bindparam("session") != ""))


@fault
def a_claim_takes_any_job_of_the_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "_NEXT_JOB", claim_query("jobs.status = 'queued'"))


def claim_query(runnable: str) -> Any:
    return (
        select(jobs)
        .where(literal_column(runnable), claim._IN_LANE)
        .where(jobs.c.due_at <= bindparam("now"), jobs.c.deadline_at > bindparam("now"))
        .order_by(jobs.c.rank, jobs.c.due_at, jobs.c.id)
        .limit(1)
    )


@fault
def a_claim_does_not_wait_for_a_retry(patch: pytest.MonkeyPatch) -> None:
    runnable = select(jobs).where(statements.RUNNABLE, claim._IN_LANE, jobs.c.deadline_at > bindparam("now"))
    patch.setattr(claim, "_NEXT_JOB", runnable.order_by(jobs.c.rank, jobs.c.due_at, jobs.c.id).limit(1))


@fault
def a_claim_takes_what_is_past_its_deadline(patch: pytest.MonkeyPatch) -> None:
    runnable = select(jobs).where(statements.RUNNABLE, claim._IN_LANE, jobs.c.due_at <= bindparam("now"))
    patch.setattr(claim, "_NEXT_JOB", runnable.order_by(jobs.c.rank, jobs.c.due_at, jobs.c.id).limit(1))


@fault
def a_claim_forgets_the_rank(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        claim, "_NEXT_JOB", claim_query("jobs.status = 'queued' AND jobs.head").order_by(None).order_by(jobs.c.id)
    )


@fault
def a_claim_does_not_keep_the_limit(patch: pytest.MonkeyPatch) -> None:
    due = (lanes.c.lane == bindparam("lane")) & (lanes.c.next_due <= now_us())
    lane = select(lanes.c.tenant, now_us().label("now")).where(due).order_by(lanes.c.running, lanes.c.last_served)
    patch.setattr(claim, "_FREE_LANE", lane.limit(1))


@fault
def a_claim_serves_the_busiest_lane(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "_FREE_LANE", claim._LANE.order_by(None).order_by(lanes.c.running.desc()))


@fault
def a_claim_corrects_the_hint_too_far(patch: pytest.MonkeyPatch) -> None:
    latest = select(func.max(jobs.c.due_at)).where(statements.RUNNABLE, claim._IN_LANE)
    patch.setattr(claim, "_NEXT_DUE", latest.where(jobs.c.deadline_at > bindparam("now")))


@fault
def a_claim_gives_up_at_the_first_wrong_hint(patch: pytest.MonkeyPatch) -> None:
    def give_up(*arguments: Any) -> Any:
        try:
            return look(*arguments)
        except CommitAndRunAgain:
            return None

    look = claim.claim
    patch.setattr(claim, "claim", give_up)


@fault
def a_claim_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    served = update(lanes).where(lanes.c.lane == bindparam("the_lane"), lanes.c.tenant == bindparam("the_tenant"))
    patch.setattr(claim, "_SERVE", served.values(last_served=bindparam("now")))


@fault
def an_end_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(move, "leave_lane", nothing)


@fault
def a_retry_does_not_lower_the_hint(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(move, "work_is_due", nothing)


@fault
def an_acceptance_does_not_lower_the_hint(patch: pytest.MonkeyPatch) -> None:
    due = statements.work_is_due
    patch.setattr(accept, "work_is_due", lambda connection, lane, tenant, _: due(connection, lane, tenant, 2**60))


@fault
def a_renewal_ignores_the_attempt(patch: pytest.MonkeyPatch) -> None:
    def renew(connection: Any, held: Any, lease_us: int) -> lease.Renewal:
        ids = [job_id for job_id, _ in held]
        found = select(jobs.c.id, jobs.c.attempt).where(jobs.c.id.in_(ids), jobs.c.status == "running")
        return real(connection, [tuple(row) for row in connection.execute(found)], lease_us)

    real = lease.renew
    patch.setattr(lease, "renew", renew)


@fault
def a_renewal_is_by_worker(patch: pytest.MonkeyPatch) -> None:
    def renew(connection: Any, held: Any, lease_us: int) -> lease.Renewal:
        workers = select(jobs.c.worker).where(jobs.c.id.in_([job_id for job_id, _ in held]))
        mine = update(jobs).where(jobs.c.worker.in_(workers), jobs.c.status == "running")
        connection.execute(mine.values(lease_until=now_us() + lease_us))
        return real(connection, held, lease_us)

    real = lease.renew
    patch.setattr(lease, "renew", renew)


@fault
def a_wish_to_stop_is_forgotten_when_the_attempt_ends(patch: pytest.MonkeyPatch) -> None:
    _hold_with(patch, cancel_reason=None)


@fault
def a_lease_that_holds_expires(patch: pytest.MonkeyPatch) -> None:
    _hold_with(patch, lease_until=0)


@fault
def a_deadline_lapses_early(patch: pytest.MonkeyPatch) -> None:
    _hold_with(patch, deadline_at=0)


def _hold_with(patch: pytest.MonkeyPatch, **fields: Any) -> None:
    hold = move.hold

    def held(*arguments: Any, **options: Any) -> Any:
        job, now = hold(*arguments, **options)
        return SimpleNamespace(**{**job._mapping, **fields}), now

    patch.setattr(settle, "hold", held)


@fault
def a_third_try_is_given(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(settle, "MAX_FAILURES", 3)


@fault
def a_busy_provider_is_charged(patch: pytest.MonkeyPatch) -> None:
    fail = settle._fail

    def charge(connection: Any, job: Any, now: int, error: Any, kind: str, *rest: Any) -> Any:
        return fail(connection, job, now, error, "fail" if kind == "defer" else kind, *rest)

    patch.setattr(settle, "_fail", charge)


@fault
def an_answer_does_not_become_the_active_branch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(move, "MOVE_LEAF", statements.MOVE_LEAF.where(literal(False)))


@fault
def an_answer_hangs_nowhere(patch: pytest.MonkeyPatch) -> None:
    insert = insert_messages
    patch.setattr(move, "insert_messages", lambda *rest, parent_id, now: insert(*rest, parent_id="nowhere", now=now))


@fault
def a_message_gets_no_place(patch: pytest.MonkeyPatch) -> None:
    place = update(messages).where(messages.c.id == bindparam("message"), bindparam("parent").is_(literal(1)))
    patch.setattr(claim, "PLACE_MESSAGE", place.values(placed=True))


@fault
def a_message_is_placed_at_the_root(patch: pytest.MonkeyPatch) -> None:
    place = update(messages).where(messages.c.id == bindparam("message"), bindparam("parent").is_not(literal(1)))
    patch.setattr(claim, "PLACE_MESSAGE", place.values(parent_id=None, placed=True))


@fault
def only_new_messages_are_placed(patch: pytest.MonkeyPatch) -> None:
    start = claim._start

    def skipping(connection: Any, row: Any, *rest: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            if row.regenerates:
                a_message_gets_no_place(inner)
            return start(connection, row, *rest)

    patch.setattr(claim, "_start", skipping)


@fault
def the_dead_have_no_letter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(move, "_INSERT_DEAD_LETTER", select(literal(1)))


@fault
def an_attempt_stays_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(move, "_end_attempt", nothing)


@fault
def a_transition_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    record = statements.record

    def forgetful(connection: Any, *, kind: str, **fields: Any) -> Any:
        if kind == "release":
            return statements.Recorded(fields["job_id"], fields["epoch"], kind, b"")
        return record(connection, kind=kind, **fields)

    patch.setattr(move, "record", forgetful)


@fault
def an_id_is_anybodys(patch: pytest.MonkeyPatch) -> None:
    def known(connection: Any, job: Any, digest: str) -> Any:
        row = connection.execute(accept._KNOWN_JOB, {"job_id": job.job_id}).one_or_none()
        return row and accept.Accepted(job.job_id, row.session_id, job.queue, False, None)

    patch.setattr(accept, "_known", known)


@pytest.fixture(autouse=True)
def few_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "MAX_RELEASES", 1)


@pytest.mark.parametrize("name", FAULTS)
async def test_the_walk_finds(sqlite_database: Database, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    FAULTS[name](monkeypatch)
    # A TypeError is how the code itself meets a lease that a job of that status does not have.
    with pytest.raises((BrokenRule, IntegrityError, TypeError)):
        await JobWalk(sqlite_database, seed=2).run(3000)
