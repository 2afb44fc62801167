"""What an attempt keeps of its progress, and that nobody else can add to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Table, bindparam, func, literal_column, select
from sqlalchemy.util import await_only

from schemas.agent_message import AgentMessage, ToolCall, Usage
from schemas.errors import TransitionRefused
from schemas.progress import NO_PROGRESS, Progress
from schemas.tool import ToolResult
from storage.clock import now_us
from storage.database import Database
from storage.jobs import progress
from storage.jobs.claim import Claim
from storage.jobs.progress import finish_call, read_progress, save_round, start_call
from storage.jobs.redrive import redrive
from storage.jobs.settle import expire, fail, finish, rebuild, release
from storage.tables import dead_letters, jobs, rounds, tool_calls
from tests.integration.storage.acts import BROKEN, TENANT, ask, everything, job_row, pass_time, row, said, take

USAGE = Usage(prompt_tokens=2, completion_tokens=3, total_tokens=5)


def a_round(text: str = "I look.", call_id: str = "c1") -> list[AgentMessage]:
    call = ToolCall(id=call_id, name="search", args={"query": "é\u2028"})
    return [
        AgentMessage.assistant(text, [call]),
        AgentMessage(role="tool", content="found", tool_call_id=call_id),
    ]


async def begin(
    database: Database, claimed: Claim, round_: int = 0, call_id: str = "w1", *, continues: bool = True
) -> str:
    return await database.write(
        start_call, claimed.job_id, claimed.attempt, round_, call_id, "send", "write", {"to": "é"}, continues
    )


async def keep(database: Database, claimed: Claim, seq: int = 0, usage: Usage | None = USAGE) -> None:
    messages = a_round(call_id=f"c{seq}")
    await database.write(save_round, claimed.job_id, claimed.attempt, seq, messages, usage)


async def kept(database: Database, claimed: Claim) -> Progress:
    return await database.read(read_progress, claimed.job_id)


async def claimed_again(database: Database, claimed: Claim) -> Claim:
    await database.write(pass_time, 60)
    await database.write(expire, claimed.job_id, claimed.epoch)
    return await take(database, worker="other")


async def rows_of(database: Database, table: Table, job_id: str) -> int:
    query = select(func.count()).select_from(table).where(table.c.job_id == job_id)
    return int(await database.read(lambda connection: connection.execute(query).scalar_one()))


WRITES: dict[str, Callable[[Database, Claim, str], Any]] = {
    "save_round": lambda db, claimed, key: keep(db, claimed, 1),
    "start_call": lambda db, claimed, key: begin(db, claimed),
    "start_call of one that cannot continue": lambda db, claimed, key: begin(db, claimed, continues=False),
    "finish_call": lambda db, claimed, key: db.write(
        finish_call, claimed.job_id, claimed.attempt, key, ToolResult("sent")
    ),
}


async def test_nothing_is_kept_at_first(database: Database) -> None:
    await ask(database)
    assert await kept(database, await take(database)) == NO_PROGRESS


async def test_rounds_are_read_back_in_order_with_the_sum_of_their_tokens(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    for seq, usage in enumerate((USAGE, None, USAGE)):
        await keep(database, claimed, seq, usage)
    found = await kept(database, claimed)
    assert found.rounds == 3
    assert list(found.messages) == [message for seq in range(3) for message in a_round(call_id=f"c{seq}")]
    assert found.usage == Usage(prompt_tokens=4, completion_tokens=6, total_tokens=10)


async def test_a_round_saved_twice_is_there_once(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    for _ in range(2):
        await keep(database, claimed)
    assert (await kept(database, claimed)).rounds == 1


async def test_calls_are_open_until_their_round_is_saved(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    known, unknown = await begin(database, claimed, call_id="w1"), await begin(database, claimed, call_id="w2")
    await database.write(finish_call, claimed.job_id, claimed.attempt, known, ToolResult("no", is_error=True))
    first, second = (await kept(database, claimed)).open_calls
    assert (first.key, first.call_id, first.name, first.args) == (known, "w1", "send", {"to": "é"})
    assert (first.result, first.is_error) == ("no", True)
    assert (second.key, second.result) == (unknown, None)
    await keep(database, claimed)
    assert (await kept(database, claimed)).open_calls == ()
    later = await begin(database, claimed, round_=1)
    assert [call.key for call in (await kept(database, claimed)).open_calls] == [later]


@pytest.mark.parametrize("name", WRITES)
async def test_an_attempt_that_has_lost_its_job_keeps_nothing(database: Database, name: str) -> None:
    await ask(database)
    zombie = await take(database, worker="zombie")
    await keep(database, zombie)
    key = await begin(database, zombie, 1)
    other = await claimed_again(database, zombie)
    before = await everything(database)
    with pytest.raises(TransitionRefused):
        await WRITES[name](database, zombie, key)
    assert await everything(database) == before
    await WRITES[name](database, other, key)


@pytest.mark.parametrize("name", WRITES)
async def test_nothing_is_kept_of_a_job_that_does_not_run(database: Database, name: str) -> None:
    await ask(database)
    claimed = await take(database)
    key = await begin(database, claimed)
    await database.write(pass_time, 60)
    await database.write(expire, claimed.job_id, claimed.epoch)
    with pytest.raises(TransitionRefused):
        await WRITES[name](database, claimed, key)
    again = await take(database)
    await database.write(finish, again.job_id, again.epoch, said("x"), None)
    with pytest.raises(TransitionRefused):
        await WRITES[name](database, again, key)


async def test_a_rebuilt_log_takes_nothing_from_its_own_attempt(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await database.write(rebuild, claimed.job_id, claimed.epoch, "x", [])
    await keep(database, claimed)
    await begin(database, claimed, 1)
    assert (await kept(database, claimed)).rounds == 1


async def test_a_round_that_another_attempt_saved_is_refused(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await keep(database, claimed)
    other = await claimed_again(database, claimed)
    with pytest.raises(TransitionRefused):
        await keep(database, other, 0)


@pytest.mark.parametrize("write", ["round", "call"])
async def test_either_the_job_is_taken_away_or_something_is_kept(database: Database, write: str) -> None:
    for _ in range(12):
        await ask(database)
        claimed = await take(database)
        await database.write(pass_time, 60)
        act = keep(database, claimed) if write == "round" else begin(database, claimed)
        expired, wrote = await asyncio.gather(
            database.write(expire, claimed.job_id, claimed.epoch), act, return_exceptions=True
        )
        assert not isinstance(expired, BaseException)
        saved = await rows_of(database, rounds if write == "round" else tool_calls, claimed.job_id)
        assert saved == (0 if isinstance(wrote, TransitionRefused) else 1), wrote
        other = await take(database)
        assert (other.job_id, other.attempt) == (claimed.job_id, 2)
        await database.write(finish, other.job_id, other.epoch, said("x"), None)


async def test_a_save_under_way_holds_up_whoever_takes_the_job_away(postgres_database: Database) -> None:
    database = postgres_database
    await ask(database)
    claimed = await take(database)
    await database.write(pass_time, 60)
    locked, go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(connection: Any) -> None:
        start_call(connection, claimed.job_id, claimed.attempt, 0, "w1", "send", "write", {}, True)
        loop.call_soon(locked.set)
        await_only(go.wait())

    saving = asyncio.create_task(database.write(slowly))
    await locked.wait()
    expiring = asyncio.create_task(database.write(expire, claimed.job_id, claimed.epoch))
    done, _ = await asyncio.wait([expiring], timeout=0.3)
    # Before anything is claimed of it: a save left standing would keep its connection.
    go.set()
    await asyncio.gather(saving, expiring)
    assert not done
    assert len((await kept(database, claimed)).open_calls) == 1


@pytest.mark.parametrize("end", ["fail", "release", "expire"])
async def test_a_job_that_wrote_and_cannot_continue_is_dead_and_says_why(database: Database, end: str) -> None:
    await ask(database)
    claimed = await take(database)
    await begin(database, claimed, continues=False)
    assert (await job_row(database, claimed.job_id))["wrote"]
    match end:
        case "fail":
            await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0)
        case "release":
            await database.write(release, claimed.job_id, claimed.epoch)
        case _:
            await database.write(pass_time, 60)
            await database.write(expire, claimed.job_id, claimed.epoch)
    letter = await row(database, dead_letters, job_id=claimed.job_id)
    assert "its tools have written and its agent cannot continue" in letter["error"]["message"]


@pytest.mark.parametrize("end", ["fail", "release"])
async def test_a_job_that_wrote_and_can_continue_is_tried_again(database: Database, end: str) -> None:
    await ask(database)
    claimed = await take(database)
    await begin(database, claimed)
    if end == "fail":
        await database.write(fail, claimed.job_id, claimed.epoch, BROKEN, delay_us=0)
    else:
        await database.write(release, claimed.job_id, claimed.epoch)
    assert (await take(database)).attempt == 2


async def test_a_redriven_job_has_kept_its_progress(database: Database) -> None:
    await ask(database)
    claimed = await take(database)
    await keep(database, claimed)
    await database.write(
        fail, claimed.job_id, claimed.epoch, BROKEN.model_copy(update={"retryable": False}), delay_us=0
    )
    letter = await row(database, dead_letters, job_id=claimed.job_id)
    await database.write(redrive, TENANT, letter["id"])
    again = await take(database)
    assert (again.job_id, (await kept(database, again)).rounds) == (claimed.job_id, 1)


# The checks above can fail: each of these faults is found by one of them.


async def test_planted_a_guard_that_does_not_look_at_the_attempt(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = select(jobs.c.tenant, jobs.c.wrote, now_us().label("now")).where(
        jobs.c.id == bindparam("job"), literal_column("jobs.status = 'running'")
    )
    monkeypatch.setattr(progress, "_HELD", held)
    with pytest.raises((pytest.fail.Exception, AssertionError)):
        await test_an_attempt_that_has_lost_its_job_keeps_nothing(sqlite_database, "start_call")


async def test_planted_a_guard_that_locks_nothing(postgres_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    held = select(jobs.c.tenant, jobs.c.wrote, now_us().label("now")).where(
        jobs.c.id == bindparam("job"),
        jobs.c.attempt == bindparam("attempt"),
        literal_column("jobs.status = 'running'"),
    )
    monkeypatch.setattr(progress, "_HELD", held)
    with pytest.raises(AssertionError):
        await test_a_save_under_way_holds_up_whoever_takes_the_job_away(postgres_database)
