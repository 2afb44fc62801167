"""How an attempt ends, and what must be true afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, update

from schemas.agent_message import AgentMessage, Usage
from schemas.errors import JobError, TransitionRefused
from schemas.job_event import rfc3339
from schemas.stream_event import ToolNote
from storage.clock import to_us
from storage.database import Database
from storage.jobs.claim import Claim
from storage.jobs.lease import renew
from storage.jobs.settle import (
    MAX_RELEASES,
    AttemptRecord,
    cancel,
    expire,
    fail,
    finish,
    lapse,
    rebuild,
    release,
)
from storage.jobs.statements import Recorded
from storage.tables import attempts, dead_letters, jobs, lanes, messages, sessions, transitions
from tests.integration.storage.acts import (
    BROKEN,
    HOPELESS,
    answer,
    ask,
    everything,
    job_row,
    kinds,
    pass_time,
    row,
    rows,
    said,
    take,
    try_claim,
)
from tests.integration.storage.rules import check_rules

USAGE: Usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


async def event_of(database: Database, recorded: Recorded) -> dict[str, Any]:
    """The event as stored, which must be the one returned."""
    stored = await row(database, transitions, job_id=recorded.job_id, epoch=recorded.epoch)
    assert stored["event"].encode() == recorded.event
    assert stored["kind"] == recorded.kind
    event: dict[str, Any] = json.loads(recorded.event)
    assert event["job_id"] == recorded.job_id
    assert event["at"] == rfc3339(stored["at"])
    return event


async def test_finish_saves_the_answer_and_makes_it_the_active_branch(database: Database) -> None:
    await ask(database, "hello")
    claimed = await take(database)
    response = [
        AgentMessage.assistant("let me see", [{"id": "c1", "name": "clock", "args": {"zone": "UTC"}}]),
        AgentMessage(role="tool", content="noon", tool_call_id="c1"),
        AgentMessage.assistant("it is noon"),
    ]
    recorded = await database.write(finish, claimed.job_id, claimed.epoch, response, USAGE, "step_limit")
    job = await job_row(database, claimed.job_id)
    assert (job["status"], job["epoch"], job["outcome"], job["head"]) == ("finished", 2, "step_limit", False)
    assert (job["worker"], job["lease_until"]) == (None, None)
    saved = await rows(database, messages, job_id=claimed.job_id)
    assert [message["role"] for message in saved] == ["user", "assistant", "tool", "assistant"]
    assert [message["parent_id"] for message in saved[1:]] == [message["id"] for message in saved[:-1]]
    assert saved[1]["tool_calls"] == [{"id": "c1", "name": "clock", "args": {"zone": "UTC"}}]
    assert (saved[2]["tool_call_id"], saved[2]["content"]) == ("c1", "noon")
    assert {message["status"] for message in saved} == {"complete"}
    assert (await row(database, sessions))["active_leaf"] == saved[-1]["id"]
    event = await event_of(database, recorded)
    assert (event["kind"], event["outcome"], event["usage"]) == ("final", "step_limit", USAGE)
    assert event["response"] == [message.to_json() for message in response]
    assert event["message_ids"] == [message["id"] for message in saved[1:]]
    assert recorded.terminal
    attempt = await row(database, attempts)
    assert (attempt["ending"], attempt["error"], attempt["ended_at"]) == ("finish", None, job["ended_at"])
    await check_rules(database)


async def test_finish_with_nothing_said_is_an_answer(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    recorded = await database.write(finish, claimed.job_id, claimed.epoch, said(""), None)
    event = await event_of(database, recorded)
    assert (event["kind"], event["outcome"], event["usage"]) == ("final", "ok", None)
    assert event["response"] == [{"role": "assistant", "content": ""}]
    await check_rules(database)


async def test_the_first_failure_waits_for_a_retry(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    recorded = await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=to_us(2))
    job = await job_row(database, claimed.job_id)
    assert (job["status"], job["epoch"], job["failures"], job["head"]) == ("queued", 2, 1, True)
    assert job["error_code"] == "provider_error"
    event = await event_of(database, recorded)
    assert (event["kind"], event["error"]) == ("retrying", BROKEN.model_dump())
    assert event["retry_at"] == rfc3339(job["due_at"])
    assert (recorded.wakes, recorded.due_in_us) == (None, to_us(2))
    assert not recorded.terminal
    assert await rows(database, dead_letters) == []
    await check_rules(database)


async def test_a_retry_without_a_pause_rings_at_once(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    recorded = await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0)
    assert (recorded.wakes, recorded.due_in_us) == ("chat", 0)


async def test_the_second_failure_is_a_dead_letter(database: Database) -> None:
    await ask(database, queue="bulk")
    first = await take(database, "bulk")
    await database.write(fail, first.job_id, first.epoch, BROKEN, delay_us=0)
    second = await take(database, "bulk")
    assert (second.failures, second.attempt) == (1, 2)
    error = JobError(code="timeout", message="it took too long", retryable=True)
    recorded = await database.write(fail, second.job_id, second.epoch, error, delay_us=0)
    job = await job_row(database, second.job_id)
    assert (job["status"], job["epoch"], job["failures"], job["error_code"]) == ("dead", 4, 2, "timeout")
    letter = await row(database, dead_letters)
    assert (letter["job_id"], letter["epoch"], letter["queue"]) == (second.job_id, 4, "bulk")
    assert (letter["error"], letter["resolution"]) == (error.model_dump(), None)
    event = await event_of(database, recorded)
    assert (event["kind"], event["error"], event["dead_letter_id"]) == ("failed", error.model_dump(), letter["id"])
    assert recorded.terminal
    assert await try_claim(database, "bulk") is None
    await check_rules(database)


async def test_what_cannot_succeed_is_dead_at_once(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    recorded = await database.write(fail, claimed.job_id, claimed.epoch, HOPELESS, delay_us=to_us(2))
    assert (await event_of(database, recorded))["kind"] == "failed"
    job = await job_row(database, claimed.job_id)
    assert (job["status"], job["failures"]) == ("dead", 1)
    await check_rules(database)


async def test_a_busy_provider_costs_no_retry_however_often(database: Database) -> None:
    accepted = await ask(database)
    for _ in range(4):
        claimed = await take(database)
        recorded = await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=to_us(30), charged=False)
        assert (await event_of(database, recorded))["kind"] == "retrying"
        await database.write(pass_time, 30)
    job = await job_row(database, accepted.job_id)
    assert (job["status"], job["failures"], job["attempt"]) == ("queued", 0, 4)
    assert (await kinds(database, accepted.job_id))[-1] == "defer"
    await check_rules(database)


@pytest.mark.parametrize("charged", [True, False])
async def test_a_retry_that_would_come_after_the_deadline_is_dead_now(database: Database, charged: bool) -> None:
    await ask(database, deadline_s=60)
    claimed = await take(database)
    recorded = await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=to_us(60), charged=charged)
    event = await event_of(database, recorded)
    assert (event["kind"], event["error"]["code"]) == ("failed", "provider_error")
    assert (await job_row(database, claimed.job_id))["failures"] == charged
    await check_rules(database)


async def test_what_an_attempt_had_shown_is_kept_with_its_error(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    shown = AttemptRecord("TimeoutError", "Traceback …", "half an ans", [{"id": "c", "name": "t", "status": "started"}])
    await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0, attempt=shown)
    attempt = await row(database, attempts)
    assert (attempt["ending"], attempt["error"]) == ("fail", BROKEN.model_dump())
    assert (attempt["error_class"], attempt["trace"]) == ("TimeoutError", "Traceback …")
    assert attempt["shown_text"] == "half an ans"
    assert attempt["shown_tools"] == [{"id": "c", "name": "t", "status": "started"}]
    assert [message["role"] for message in await rows(database, messages)] == ["user"], "it is no message"


@pytest.mark.parametrize(
    ("error", "record"),
    [
        (JobError(code="c" * 500, message="m", retryable=True), AttemptRecord()),
        (JobError(code="c", message="a\x00b\ud800c", retryable=True), AttemptRecord()),
        (BROKEN, AttemptRecord(error_class="E" * 500, trace="\x00 \udfff", shown_text="x\x00\ud83d")),
        (BROKEN, AttemptRecord(shown_tools=[{"id": "\x00", "name": "t", "status": "started", "args": {"n": 10**40}}])),
        (
            BROKEN,
            AttemptRecord(shown_tools=[{"id": "i", "name": "t", "status": "started", "args": {"n": float("nan")}}]),
        ),
    ],
    ids=["a long code", "odd text in the error", "odd text in the record", "a huge number", "no number"],
)
async def test_an_attempt_can_fail_whatever_its_handler_raised(
    database: Database, error: JobError, record: AttemptRecord
) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, error, delay_us=0, attempt=record)
    assert (await job_row(database, claimed.job_id))["status"] == "queued"
    await check_rules(database)


async def test_a_release_costs_no_retry_and_is_due_at_once(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    recorded = await database.write(release, claimed.job_id, claimed.epoch)
    job = await job_row(database, claimed.job_id)
    assert (job["status"], job["failures"], job["releases"]) == ("queued", 0, 1)
    event = await event_of(database, recorded)
    assert (event["kind"], event["reason"]) == ("requeued", "shutdown")
    assert recorded.wakes == "chat"
    assert (await take(database)).attempt == 2
    await check_rules(database)


async def test_the_sixth_release_counts_as_a_failure(database: Database) -> None:
    await ask(database)
    for _ in range(MAX_RELEASES):
        claimed = await take(database)
        assert (await database.write(release, claimed.job_id, claimed.epoch)).kind == "release"
    claimed = await take(database)
    recorded = await database.write(release, claimed.job_id, claimed.epoch)
    event = await event_of(database, recorded)
    assert (recorded.kind, event["kind"], event["error"]["code"]) == ("fail", "retrying", "released_too_often")
    claimed = await take(database)
    recorded = await database.write(release, claimed.job_id, claimed.epoch)
    assert (await event_of(database, recorded))["kind"] == "failed"
    job = await job_row(database, claimed.job_id)
    assert (job["status"], job["failures"], job["releases"]) == ("dead", 2, MAX_RELEASES)
    await check_rules(database)


async def test_cancelling_a_queued_job_ends_it_at_once(database: Database) -> None:
    accepted = await ask(database)
    recorded = await database.write(cancel, accepted.job_id, 0, "user")
    job = await job_row(database, accepted.job_id)
    assert (job["status"], job["epoch"], job["attempt"]) == ("cancelled", 1, 0)
    event = await event_of(database, recorded)
    assert (event["kind"], event["reason"], event["response"], event["message_ids"]) == ("cancelled", "user", [], [])
    assert (await row(database, sessions))["active_leaf"] is None
    assert (await row(database, lanes))["running"] == 0
    await check_rules(database)


async def test_cancelling_an_attempt_saves_its_text_marked(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    recorded = await database.write(cancel, claimed.job_id, claimed.epoch, "user", said("half an ans"))
    saved = await row(database, messages, role="assistant")
    assert (saved["content"], saved["status"]) == ("half an ans", "cancelled")
    assert (await row(database, sessions))["active_leaf"] == saved["id"]
    event = await event_of(database, recorded)
    assert (event["response"], event["message_ids"]) == ([said("half an ans")[0].to_json()], [saved["id"]])
    assert (await row(database, attempts))["ending"] == "cancel"
    await check_rules(database)


async def test_cancelling_an_attempt_that_said_nothing_moves_no_branch(database: Database) -> None:
    opened = await ask(database)
    await answer(database, await take(database))
    leaf = (await row(database, sessions))["active_leaf"]
    await ask(database, "again", session_id=opened.session_id)
    claimed = await take(database)
    await database.write(cancel, claimed.job_id, claimed.epoch, "user")
    assert (await row(database, sessions))["active_leaf"] == leaf
    await check_rules(database)


async def test_a_failure_moves_no_branch(database: Database) -> None:
    opened = await ask(database)
    await answer(database, await take(database))
    leaf = (await row(database, sessions))["active_leaf"]
    await ask(database, "again", session_id=opened.session_id)
    claimed = await take(database)
    await database.write(fail, claimed.job_id, claimed.epoch, HOPELESS, delay_us=0)
    assert (await row(database, sessions))["active_leaf"] == leaf
    await ask(database, "and again", session_id=opened.session_id)
    assert (await take(database)).history_leaf == leaf, "what was never answered is no history"


async def test_a_lease_that_is_past_expires(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(pass_time, 15.1)
    recorded = await database.write(expire, claimed.job_id, claimed.epoch)
    job = await job_row(database, claimed.job_id)
    assert (job["status"], job["failures"], job["error_code"]) == ("queued", 1, "worker_lost")
    event = await event_of(database, recorded)
    assert (event["kind"], event["error"]["code"]) == ("retrying", "worker_lost")
    assert recorded.wakes == "chat"
    attempt = await row(database, attempts)
    assert (attempt["ending"], attempt["error_class"]) == ("expire", "WorkerLost")
    await check_rules(database)


async def test_a_lease_that_holds_does_not_expire(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(pass_time, 14)
    before = await everything(database)
    with pytest.raises(TransitionRefused):
        await database.write(expire, claimed.job_id, claimed.epoch)
    assert await everything(database) == before
    await database.write(pass_time, 14)
    await database.write(renew, [(claimed.job_id, claimed.attempt)], to_us(15))
    with pytest.raises(TransitionRefused):
        await database.write(expire, claimed.job_id, claimed.epoch)


async def test_the_second_lost_worker_makes_a_dead_letter(database: Database) -> None:
    await ask(database)
    for told in ("retrying", "failed"):
        claimed = await take(database)
        await database.write(pass_time, 16)
        event = await event_of(database, await database.write(expire, claimed.job_id, claimed.epoch))
        assert (event["kind"], event["error"]["code"]) == (told, "worker_lost")
    await check_rules(database)


async def test_a_deadline_that_passes_in_the_queue_lapses(database: Database) -> None:
    accepted = await ask(database, deadline_s=10)
    with pytest.raises(TransitionRefused):
        await database.write(lapse, accepted.job_id, 0)
    await database.write(pass_time, 10)
    recorded = await database.write(lapse, accepted.job_id, 0)
    event = await event_of(database, recorded)
    assert (event["kind"], event["error"]["code"], event["error"]["retryable"]) == ("failed", "deadline", False)
    job = await job_row(database, accepted.job_id)
    assert (job["status"], job["failures"]) == ("dead", 0)
    await check_rules(database)


async def test_a_running_job_does_not_lapse(database: Database) -> None:
    await ask(database, deadline_s=10)
    claimed = await take(database)
    await database.write(pass_time, 11)
    with pytest.raises(TransitionRefused):
        await database.write(lapse, claimed.job_id, claimed.epoch)


async def test_a_rebuild_is_a_new_epoch_of_the_same_attempt(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    tool: ToolNote = {"id": "c", "name": "t", "status": "finished", "result": "r"}
    recorded = await database.write(rebuild, claimed.job_id, claimed.epoch, "so far", [tool])
    assert recorded.epoch == 2
    event = await event_of(database, recorded)
    assert (event["kind"], event["text"], event["tools"]) == ("snapshot", "so far", [tool])
    job = await job_row(database, claimed.job_id)
    assert (job["status"], job["epoch"], job["attempt"]) == ("running", 2, 1)
    assert job["lease_until"] is not None
    with pytest.raises(TransitionRefused):
        await answer(database, claimed)
    await database.write(finish, claimed.job_id, recorded.epoch, said("so far and on"), None)
    assert (await row(database, attempts))["ending"] == "finish"
    await check_rules(database)


Settle = Callable[[Database, str, int], Any]
SETTLES: dict[str, Settle] = {
    "finish": lambda db, job, epoch: db.write(finish, job, epoch, said("x"), None),
    "fail": lambda db, job, epoch: db.write(fail, job, epoch, BROKEN, delay_us=0),
    "hopeless": lambda db, job, epoch: db.write(fail, job, epoch, HOPELESS, delay_us=0),
    "release": lambda db, job, epoch: db.write(release, job, epoch),
    "cancel": lambda db, job, epoch: db.write(cancel, job, epoch, "user", said("x")),
    "expire": lambda db, job, epoch: db.write(expire, job, epoch),
    "lapse": lambda db, job, epoch: db.write(lapse, job, epoch),
    "rebuild": lambda db, job, epoch: db.write(rebuild, job, epoch, "x", []),
}


async def _superseded(database: Database) -> Claim:
    """An attempt whose job another attempt has by now; everything that could be past is past."""
    await ask(database, deadline_s=10)
    zombie = await take(database, worker="zombie")
    await database.write(release, zombie.job_id, zombie.epoch)
    await take(database, worker="other")
    await database.write(pass_time, 60)
    return zombie


@pytest.mark.parametrize("name", SETTLES)
async def test_an_older_epoch_can_write_nothing(database: Database, name: str) -> None:
    zombie = await _superseded(database)
    before = await everything(database)
    for epoch in (0, zombie.epoch, zombie.epoch + 1, 99):
        with pytest.raises(TransitionRefused):
            await SETTLES[name](database, zombie.job_id, epoch)
    assert await everything(database) == before


@pytest.mark.parametrize("name", SETTLES)
async def test_an_ended_job_cannot_be_moved(database: Database, name: str) -> None:
    await ask(database, deadline_s=10)
    claimed = await take(database)
    done = await answer(database, claimed)
    await database.write(pass_time, 60)
    before = await everything(database)
    for epoch in (claimed.epoch, done.epoch):
        with pytest.raises(TransitionRefused):
            await SETTLES[name](database, claimed.job_id, epoch)
    assert await everything(database) == before


@pytest.mark.parametrize("name", SETTLES)
async def test_a_job_that_is_not_there_cannot_be_moved(database: Database, name: str) -> None:
    with pytest.raises(TransitionRefused):
        await SETTLES[name](database, "no such job", 1)


@pytest.mark.parametrize("name", [name for name in SETTLES if name not in ("cancel", "lapse")])
async def test_a_queued_job_has_no_attempt_to_end(database: Database, name: str) -> None:
    accepted = await ask(database, deadline_s=10)
    before = await everything(database)
    with pytest.raises(TransitionRefused):
        await SETTLES[name](database, accepted.job_id, 0)
    assert await everything(database) == before


ENDINGS = ["finish", "hopeless", "cancel"]


@pytest.mark.parametrize("name", ENDINGS)
async def test_every_end_hands_the_session_on(database: Database, name: str) -> None:
    opened = await ask(database, "one")
    heir = await ask(database, "two", session_id=opened.session_id, queue="bulk")
    third = await ask(database, "three", session_id=opened.session_id)
    claimed = await take(database)
    assert await try_claim(database, "bulk") is None
    recorded = await SETTLES[name](database, claimed.job_id, claimed.epoch)
    assert recorded.wakes == "bulk", "the heir's lane is rung"
    assert (await job_row(database, heir.job_id))["head"]
    assert not (await job_row(database, third.job_id))["head"]
    await check_rules(database)
    assert (await take(database, "bulk")).job_id == heir.job_id


async def test_a_lapse_hands_the_session_on(database: Database) -> None:
    opened = await ask(database, "one", deadline_s=10)
    heir = await ask(database, "two", session_id=opened.session_id)
    await database.write(pass_time, 11)
    recorded = await database.write(lapse, opened.job_id, 0)
    assert recorded.wakes == "chat"
    await check_rules(database)
    assert (await take(database)).job_id == heir.job_id


async def test_an_end_out_of_turn_hands_nothing_on(database: Database) -> None:
    opened = await ask(database, "one")
    middle = await ask(database, "two", session_id=opened.session_id)
    await ask(database, "three", session_id=opened.session_id)
    recorded = await database.write(cancel, middle.job_id, 0, "user")
    assert recorded.wakes is None
    await check_rules(database)
    await answer(database, await take(database))
    assert (await take(database)).user_message == "three"
    await check_rules(database)


async def test_a_failure_of_the_commit_writes_nothing(database: Database) -> None:
    opened = await ask(database, "one")
    await ask(database, "two", session_id=opened.session_id)
    claimed = await take(database)
    before = await everything(database)

    def finish_and_break(connection: Connection) -> None:
        finish(connection, claimed.job_id, claimed.epoch, said("x"), None)
        raise KeyError

    with pytest.raises(KeyError):
        await database.write(finish_and_break)
    assert await everything(database) == before
    await answer(database, claimed)


@pytest.mark.parametrize("name", ["fail", "hopeless", "release", "expire"])
async def test_whatever_ends_an_attempt_that_was_to_be_stopped_cancels_it(database: Database, name: str) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(flag, claimed.job_id)
    await database.write(pass_time, 16)
    recorded = await SETTLES[name](database, claimed.job_id, claimed.epoch)
    event = await event_of(database, recorded)
    assert (recorded.kind, event["kind"], event["reason"]) == ("cancel", "cancelled", "the user left")
    job = await job_row(database, claimed.job_id)
    assert (job["status"], job["failures"], job["releases"]) == ("cancelled", 0, 0)
    await check_rules(database)


@pytest.mark.parametrize("settle", [fail, release], ids=["fail", "release"])
async def test_the_text_of_an_attempt_that_was_to_be_stopped_is_saved(database: Database, settle: Any) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(flag, claimed.job_id)
    arguments = (BROKEN,) if settle is fail else ()
    options = {"delay_us": 0} if settle is fail else {}
    await database.write(settle, claimed.job_id, claimed.epoch, *arguments, **options, response=said("half"))
    saved = await row(database, messages, role="assistant")
    assert (saved["content"], saved["status"]) == ("half", "cancelled")
    assert (await row(database, sessions))["active_leaf"] == saved["id"]


async def test_a_finish_beats_the_wish_to_stop(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(flag, claimed.job_id)
    assert (await answer(database, claimed)).kind == "finish"
    assert (await job_row(database, claimed.job_id))["status"] == "finished"
    await check_rules(database)


def flag(connection: Connection, job_id: str) -> None:
    connection.execute(update(jobs).where(jobs.c.id == job_id).values(cancel_reason="the user left"))
