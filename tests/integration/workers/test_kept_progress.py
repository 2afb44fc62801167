"""The next attempt goes on from what the last one has kept, and no write happens twice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import Connection

from schemas.chat_job import DEFAULT_TENANT
from schemas.errors import JobError
from schemas.progress import IN_DOUBT, NO_PROGRESS, Progress
from storage.jobs.redrive import redrive
from storage.jobs.settle import fail
from storage.jobs.views import get_job
from storage.queues import pause, resume
from storage.tables import messages, rounds, tool_calls
from tests.demo_server import DemoServer, demo_server
from tests.integration.workers.continuing import Scene, agents, at_the_gate, continued, cut_off, release
from tests.integration.workers.flaky import AFTER, BEFORE, Flaky
from tests.integration.workers.mill import Mill, caught_up, settled
from tests.integration.workers.scripted import script
from workers import desk, settlement
from workers.agent_sessions import kept_progress
from workers.job_stream import JobStream
from workers.partial_answer import STOPPED_RESULT


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoServer]:
    """The model; its requests are told apart by the folder of each test."""
    with demo_server() as server:
        yield server


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest_asyncio.fixture
async def mill(redis_url: str, database_url: str, namespace: str, demo: DemoServer) -> AsyncIterator[Mill]:
    """A worker of agents, on either database."""
    async with agents(redis_url, database_url, namespace, demo) as mill:
        yield mill


@pytest_asyncio.fixture
async def lite_mill(redis_url: str, sqlite_url: str, namespace: str, demo: DemoServer) -> AsyncIterator[Mill]:
    """A worker of agents, for what has nothing to do with the database."""
    async with agents(redis_url, sqlite_url, namespace, demo) as mill:
        yield mill


async def last_event(mill: Mill, job_id: str) -> dict[str, Any]:
    return (await mill.events(job_id))[-1][1]


async def saved(mill: Mill, job_id: str) -> list[tuple[str, str, list[str]]]:
    """(role, content, names of the tools called) of the answer's messages."""
    rows = await mill.rows(messages, job_id=job_id)
    return [
        (row["role"], row["content"], [call["name"] for call in row["tool_calls"] or ()])
        for row in rows
        if row["role"] != "user"
    ]


async def check_fold(mill: Mill, job_id: str) -> str:
    """What a client shows equals what is saved, snapshots and all; returns it."""
    text, shown = "", ""
    for _, event in await mill.events(job_id):
        match event["kind"]:
            case "started":
                shown = ""
            case "snapshot":
                shown = event["text"]
            case "text":
                shown += event["text"]
    text = "".join(content for role, content, _ in await saved(mill, job_id) if role == "assistant")
    assert shown == text == (await mill.fold(job_id)).text
    return text


async def test_the_next_attempt_goes_on_after_the_last_finished_round(
    mill: Mill, scene: Scene, demo: DemoServer
) -> None:
    message = f"[say:One. ]{scene.note('a')}[then][say:Two. ]{scene.wait()}[then][say:Done.]"
    job_id = await continued(mill, scene, message, "wait", "a")
    unbroken = await mill.answer(message)

    assert scene.effects(job_id) == ["a"]
    assert await check_fold(mill, job_id) == "One. Two. Done."
    assert await saved(mill, job_id) == await saved(mill, unbroken)
    assert (await last_event(mill, job_id))["usage"] == (await last_event(mill, unbroken))["usage"]
    assert await mill.transitions(job_id) == ["accept", "claim", "release", "claim", "finish"]
    # The first attempt asked for two rounds, the second one asked for the second again and was told of the first.
    first, second, again, *_ = scene.sent(demo)
    assert [one["role"] for one in first] == ["system", "user"]
    assert [one["role"] for one in second] == ["system", "user", "assistant", "tool"]
    assert again == second


async def test_a_continued_attempt_opens_with_a_snapshot_of_what_was_kept(lite_mill: Mill, scene: Scene) -> None:
    message = f"[say:One. ]{scene.note('a')}[then][say:Two. ]{scene.wait()}[then][say:Done.]"
    job_id = await continued(lite_mill, scene, message, "wait", "a")
    events = [(str(event_id), event) for event_id, event in await lite_mill.events(job_id)]
    (place,) = [place for place, (_, event) in enumerate(events) if event["kind"] == "snapshot"]
    event_id, snapshot = events[place]
    assert (event_id, events[place - 1][1]["kind"]) == ("3-2", "started")
    assert snapshot["text"] == "One. "
    assert [(note["name"], note["status"]) for note in snapshot["tools"]] == [("note", "started"), ("note", "finished")]
    assert snapshot["tools"][1]["result"] == "a is noted"


async def test_a_call_whose_outcome_is_unknown_is_not_repeated_and_the_model_is_told(
    mill: Mill, scene: Scene, demo: DemoServer
) -> None:
    job_id = await continued(mill, scene, f"[say:One. ]{scene.note('a', waits=True)}[then][say:Done.]", "note", "a")
    assert scene.effects(job_id) == ["a"]
    assert await check_fold(mill, job_id) == "Done."
    *_, asked = scene.sent(demo)
    assert [one["role"] for one in asked] == ["system", "user", "assistant", "tool"]
    assert asked[-1]["content"] == IN_DOUBT
    assert asked[-2]["tool_calls"][0]["id"] == asked[-1]["tool_call_id"]
    session_id = (await mill.job(job_id))["session_id"]
    assert (await mill.ended(await mill.answer(f"[say:Yes.] {scene.gate}", session_id=session_id)))["status"] == (
        "finished"
    )


async def test_a_call_that_had_finished_before_its_round_is_told_with_its_result(
    mill: Mill, scene: Scene, demo: DemoServer
) -> None:
    message = f"[say:One. ]{scene.note('a')}{scene.wait()}{scene.note('b')}[then][say:Done.]"
    job_id = await continued(mill, scene, message, "wait", "a", "b")
    assert scene.effects(job_id) == ["a", "b"]
    *_, asked = scene.sent(demo)
    assert [call["function"]["name"] for call in asked[2]["tool_calls"]] == ["note", "note"]
    assert [one["content"] for one in asked[3:]] == ["a is noted", "b is noted"]
    assert await check_fold(mill, job_id) == "Done."


async def test_a_tool_that_takes_a_key_is_called_again_under_the_same_one(
    mill: Mill, scene: Scene, demo: DemoServer
) -> None:
    call = scene.note("a", waits=True, tool="note_by_key")
    job_id = await continued(mill, scene, f"[say:One. ]{call}[then][say:Done.]", "note_by_key", "a")
    first, second = scene.keys(job_id)
    assert first == second is not None
    *_, asked = scene.sent(demo)
    assert asked[-1]["content"] == "a is noted"
    assert await check_fold(mill, job_id) == "Done."


async def test_an_answer_may_be_cut_off_again_and_again(lite_mill: Mill, scene: Scene) -> None:
    message = "".join(f"[say:{n}. ]{scene.note(str(n))}[then]" for n in range(2)) + f"{scene.wait()}[then][say:Done.]"
    job_id = await lite_mill.accept(message)
    looking = lite_mill.looking()
    for attempt in range(1, 4):
        await at_the_gate(lite_mill, job_id, scene, "wait", "0", "1", count=attempt)
        release(lite_mill)
    scene.gate.touch()
    await settled(looking)
    await lite_mill.ended(job_id)
    assert scene.effects(job_id) == ["0", "1"]
    assert await check_fold(lite_mill, job_id) == "0. 1. Done."
    assert (await lite_mill.kinds(job_id)).count("snapshot") == 3


async def test_the_fallback_model_goes_on_where_the_first_one_was(
    lite_mill: Mill, scene: Scene, demo: DemoServer
) -> None:
    message = f"[say:One. ]{scene.note('a')}[then][say:Two. ]{scene.wait()}[then][say:Done.]"
    job_id = await lite_mill.accept(message, fallback_model="demo")
    looking = lite_mill.looking()
    await at_the_gate(lite_mill, job_id, scene, "wait", "a")
    await lite_mill.database.write(fail_beside, job_id, retryable=True)
    release(lite_mill)
    scene.gate.touch()
    await settled(looking)
    await lite_mill.ended(job_id)
    assert scene.effects(job_id) == ["a"]
    assert await check_fold(lite_mill, job_id) == "One. Two. Done."
    assert [attempt["model"] for attempt in await lite_mill.attempts(job_id)] == [None, "demo"]


async def test_a_cancelled_continuation_saves_what_was_kept_and_what_was_shown(mill: Mill, scene: Scene) -> None:
    message = f"[say:One. ]{scene.note('a')}[then][say:Two. ]{scene.wait()}[then][say:Done.]"
    job_id = await mill.accept(message)
    looking = mill.looking()
    await at_the_gate(mill, job_id, scene, "wait", "a")
    release(mill)
    await at_the_gate(mill, job_id, scene, "wait", "a", count=2)
    await mill.cancel(job_id)
    mill.desk.cancel(job_id, "enough")
    await settled(looking)
    assert (await mill.job(job_id))["status"] == "cancelled"
    assert await saved(mill, job_id) == [
        ("assistant", "One. ", ["note"]),
        ("tool", "a is noted", []),
        ("assistant", "Two. ", ["wait"]),
        ("tool", STOPPED_RESULT, []),
    ]
    assert await check_fold(mill, job_id) == "One. Two. "
    session_id = (await mill.job(job_id))["session_id"]
    assert (await mill.ended(await mill.answer("[say:Yes.]", session_id=session_id)))["status"] == "finished"


async def test_a_job_cancelled_between_two_attempts_saves_what_was_kept(mill: Mill, scene: Scene) -> None:
    """The next turn must know what has been written, though nobody runs the job any more."""
    message = f"[say:One. ]{scene.note('a')}[then][say:Two. ]{scene.note('b', waits=True)}[then][say:Done.]"
    job_id = await mill.accept(message)
    looking = mill.looking()
    await at_the_gate(mill, job_id, scene, "note", "a", "b", count=2)
    await mill.database.write(pause, "chat")
    release(mill)
    await settled(looking)
    assert await mill.cancel(job_id) == "cancelled"
    assert await saved(mill, job_id) == [
        ("assistant", "One. ", ["note"]),
        ("tool", "a is noted", []),
        ("assistant", "", ["note"]),
        ("tool", IN_DOUBT, []),
    ]
    assert (await mill.fold(job_id)).text == "One. "
    await mill.database.write(resume, "chat")
    session_id = (await mill.job(job_id))["session_id"]
    assert (await mill.ended(await mill.answer("[say:Yes.]", session_id=session_id)))["status"] == "finished"


async def test_a_rebuilt_log_of_a_continued_attempt_says_the_kept_text_as_well(lite_mill: Mill, scene: Scene) -> None:
    message = f"[say:One. ]{scene.note('a')}[then][say:Two. ]{scene.wait()}[then][say:Done.]"
    job_id = await lite_mill.accept(message)
    looking = lite_mill.looking()
    await at_the_gate(lite_mill, job_id, scene, "wait", "a")
    release(lite_mill)
    await at_the_gate(lite_mill, job_id, scene, "wait", "a", count=2)
    await lite_mill.redis.delete(f"{lite_mill.settings.namespace}:{{{job_id}}}:events")
    scene.gate.touch()
    await settled(looking)
    assert "rebuild" in await lite_mill.transitions(job_id)
    snapshots = [event for _, event in await lite_mill.events(job_id) if event["kind"] == "snapshot"]
    assert snapshots[-1]["text"].startswith("One. Two. ")
    assert await check_fold(lite_mill, job_id) == "One. Two. Done."


async def test_a_redriven_job_goes_on_from_its_rounds(mill: Mill, scene: Scene) -> None:
    message = f"[say:One. ]{scene.note('a')}[then][say:Two. ]{scene.wait()}[then][say:Done.]"
    job_id, looking = await cut_off(mill, scene, message, "wait", "a")
    await settled(looking)
    # The same job, dead-lettered in its second round instead of finished.
    dead = await mill.accept(message)
    scene.gate.unlink()
    looking = mill.looking()
    await at_the_gate(mill, dead, scene, "wait", "a")
    await mill.database.write(fail_beside, dead, retryable=False)
    release(mill)
    await settled(looking)
    (letter,) = await mill.dead_letters(dead)
    await mill.database.write(redrive, DEFAULT_TENANT, letter["id"])
    scene.gate.touch()
    await settled(mill.looking())
    assert (await mill.job(dead))["status"] == "finished"
    assert scene.effects(dead) == ["a"]
    assert await saved(mill, dead) == await saved(mill, job_id)


def fail_beside(connection: Connection, job_id: str, *, retryable: bool) -> None:
    """Fail a running job from beside its worker."""
    job = get_job(connection, DEFAULT_TENANT, job_id)
    error = JobError(code="provider_error", message="the model did not answer", retryable=retryable)
    fail(connection, job_id, job["epoch"], error, delay_us=0)


@pytest.mark.parametrize("limit", [6, 7, 8])
async def test_the_steps_of_kept_rounds_count(
    redis_url: str, sqlite_url: str, namespace: str, demo: DemoServer, scene: Scene, limit: int
) -> None:
    rounds = "[then]".join(f"[say:{n}. ]{scene.note(str(n)) if n != 1 else scene.wait()}" for n in range(6))
    async with agents(redis_url, sqlite_url, namespace, demo, recursion_limit=limit) as mill:
        cut = await continued(mill, scene, rounds, "wait", "0")
        unbroken = await mill.answer(rounds)
        assert scene.effects(cut) == scene.effects(unbroken)
        assert await saved(mill, cut) == await saved(mill, unbroken)
        assert (await last_event(mill, cut))["outcome"] == "step_limit"


async def test_a_handler_that_cannot_continue_is_not_tried_again_after_it_wrote(mill: Mill, scene: Scene) -> None:
    args = {"file": str(scene.effects_file), "text": "a"}
    job_id = await mill.answer(
        script("begin ", ("call", ["note", args]), ("raise", "again")), agent_framework="scripted"
    )
    assert (await mill.job(job_id))["status"] == "dead"
    assert scene.effects(job_id) == ["a"]
    (letter,) = await mill.dead_letters(job_id)
    assert letter["error"]["code"] == "provider_error"
    assert "its tools have written and its agent cannot continue" in letter["error"]["message"]
    assert (await caught_up(mill, job_id))[-1] == "failed"


async def test_a_handler_that_cannot_continue_begins_anew_without_a_snapshot(mill: Mill) -> None:
    job_id = await mill.answer(
        script("half", ("call", ["calculator", {"expression": "1 + 1"}]), ("raise", "again")),
        agent_framework="scripted",
    )
    kinds = await mill.kinds(job_id)
    assert kinds.count("started") == 2
    assert "snapshot" not in kinds


@pytest.mark.parametrize("lost", [BEFORE, AFTER])
@pytest.mark.parametrize("what", ["finish_call", "save_round"])
async def test_what_has_happened_is_kept_in_memory_while_sql_is_away(
    redis_url: str, database_url: str, namespace: str, demo: DemoServer, scene: Scene, what: str, lost: str
) -> None:
    flaky = Flaky(database_url, (what, lost), (what, lost))
    async with agents(redis_url, database_url, namespace, demo, database=flaky) as mill:
        job_id = await mill.answer(f"[say:One. ]{scene.note('a')}[then][say:Two. ]{scene.note('b')}[then][say:Done.]")
        assert (flaky.lose, scene.effects(job_id)) == ([], ["a", "b"])
        assert await mill.transitions(job_id) == ["accept", "claim", "finish"]
        assert await check_fold(mill, job_id) == "One. Two. Done."
        assert len(await mill.rows(rounds, job_id=job_id)) == 2
        assert {row["status"] for row in await mill.rows(tool_calls, job_id=job_id)} == {"finished"}


@pytest.mark.parametrize("lost", [BEFORE, AFTER])
async def test_a_write_that_is_not_known_to_be_recorded_does_not_run_and_costs_no_retry(
    redis_url: str,
    database_url: str,
    namespace: str,
    demo: DemoServer,
    scene: Scene,
    lost: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settlement, "BUSY_DELAY_S", 0)
    flaky = Flaky(database_url, ("start_call", lost))
    async with agents(redis_url, database_url, namespace, demo, database=flaky) as mill:
        job_id = await mill.answer(f"[say:One. ]{scene.note('a')}[then][say:Done.]")
        job = await mill.ended(job_id)
        assert await mill.transitions(job_id) == ["accept", "claim", "defer", "claim", "finish"]
        assert (job["failures"], (await check_fold(mill, job_id))[-5:]) == (0, "Done.")
        # If the ledger has it after all, the outcome is unknown to everybody.
        assert scene.effects(job_id) == (["a"] if lost == BEFORE else [])


async def test_progress_that_cannot_be_read_costs_no_retry(
    redis_url: str, database_url: str, namespace: str, demo: DemoServer, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settlement, "BUSY_DELAY_S", 0)
    flaky = Flaky(database_url, ("read_progress", BEFORE))
    async with agents(redis_url, database_url, namespace, demo, database=flaky) as mill:
        message = f"[say:One. ]{scene.note('a')}[then]{scene.wait()}[then][say:Done.]"
        job_id = await continued(mill, scene, message, "wait", "a")
        assert await mill.transitions(job_id) == ["accept", "claim", "release", "claim", "defer", "claim", "finish"]
        assert (await mill.job(job_id))["failures"] == 0
        assert scene.effects(job_id) == ["a"]


# The checks above can fail: each of these faults is found by one of them.


async def test_planted_a_ledger_that_nobody_reads(
    lite_mill: Mill, scene: Scene, demo: DemoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgetful(*arguments: Any, **named: Any) -> Progress:
        return replace(await kept_progress(*arguments, **named), open_calls=())

    monkeypatch.setattr(desk, "kept_progress", forgetful)
    with pytest.raises(AssertionError):
        await test_a_call_whose_outcome_is_unknown_is_not_repeated_and_the_model_is_told(lite_mill, scene, demo)


async def test_planted_rounds_that_nobody_carries_on(
    lite_mill: Mill, scene: Scene, demo: DemoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgetful(*arguments: Any, **named: Any) -> Progress:
        return NO_PROGRESS

    monkeypatch.setattr(desk, "kept_progress", forgetful)
    with pytest.raises(AssertionError):
        await test_the_next_attempt_goes_on_after_the_last_finished_round(lite_mill, scene, demo)


async def test_planted_a_rebuild_that_forgets_what_was_kept(
    lite_mill: Mill, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobStream, "carry", lambda *_: None)
    with pytest.raises(AssertionError):
        await test_a_rebuilt_log_of_a_continued_attempt_says_the_kept_text_as_well(lite_mill, scene)
