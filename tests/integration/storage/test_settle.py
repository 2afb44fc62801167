"""How an attempt ends, and what must be true afterwards."""

from __future__ import annotations

import pytest

from schemas.agent_message import AgentMessage, Usage
from schemas.errors import JobError, TransitionRefused
from schemas.job_event import rfc3339
from schemas.stream_event import ToolNote
from storage.clock import to_us
from storage.database import Database
from storage.jobs.lease import renew
from storage.jobs.move import AttemptRecord
from storage.jobs.reconcile import expired_jobs
from storage.jobs.settle import (
    MAX_RELEASES,
    cancel,
    expire,
    fail,
    finish,
    lapse,
    rebuild,
    release,
)
from storage.jobs.statements import read_clock
from storage.tables import attempts, dead_letters, lanes, messages, sessions
from tests.integration.storage.acts import (
    BROKEN,
    HOPELESS,
    answer,
    ask,
    event_of,
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


async def test_a_step_of_the_clock_since_the_caller_looked_expires_nothing(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    looked_at = await database.read(read_clock)
    await database.write(pass_time, 3600)
    lease = (await job_row(database, claimed.job_id))["lease_until"]
    assert await database.read(expired_jobs, 10, lease) == []
    with pytest.raises(TransitionRefused):
        await database.write(expire, claimed.job_id, claimed.epoch, lease)
    assert looked_at > lease  # passing time moves what is stored, so the reading taken before it is the later one
    assert [stale.job_id for stale in await database.read(expired_jobs, 10, looked_at)] == [claimed.job_id]
    assert (await database.write(expire, claimed.job_id, claimed.epoch, looked_at)).kind == "expire"


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
