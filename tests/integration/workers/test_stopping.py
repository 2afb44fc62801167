"""Attempts that are told to stop, by a person or a deadline; and handlers that make it hard."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schemas.job_event import EventId
from storage.redis_client import open_redis
from storage.tables import messages
from tests.integration.workers.mill import Mill, eventually, file_appears, running, settled
from tests.integration.workers.scripted import script, scripts
from workers import attempt as attempt_module
from workers.control import ControlListener, send_cancel

CALL = {"id": "c1", "name": "clock", "status": "started", "args": {}}


@pytest.fixture(autouse=True)
def _let_go_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "LET_GO_S", 0.2)


async def test_a_queued_job_is_cancelled_at_once_and_never_runs(mill: Mill) -> None:
    job_id = await mill.accept(script("never"))
    assert await mill.cancel(job_id, "changed my mind") == "cancelled"
    await mill.desk.look()
    assert await mill.kinds(job_id) == ["queued", "cancelled"]
    assert (await mill.events(job_id))[-1][1]["reason"] == "changed my mind"
    assert await mill.attempts(job_id) == []


async def test_a_running_job_is_cancelled_by_the_control_message_with_its_text_kept(mill: Mill, tmp_path: Path) -> None:
    listener = ControlListener(mill.redis, mill.settings.namespace, mill.desk.cancel)
    listening = asyncio.create_task(listener.run())
    job_id, looking = await running(mill, tmp_path, "so ", "far", ("tool", CALL))
    assert await mill.cancel(job_id) == "stopping"

    async def heard() -> bool:
        # Until somebody listens the message goes nowhere.
        await send_cancel(mill.redis, mill.settings.namespace, job_id, "enough")
        return looking.done()

    await eventually(heard)
    await settled(looking)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    assert (await mill.kinds(job_id))[-1] == "cancelled"
    saved = await mill.rows(messages, job_id=job_id)
    assert [(row["role"], row["status"], row["content"][:6]) for row in saved if row["role"] != "user"] == [
        ("assistant", "cancelled", "so far"),
        ("tool", "cancelled", "The ca"),
    ]
    (attempt,) = await mill.attempts(job_id)
    assert (attempt["ending"], attempt["shown_text"]) == ("cancel", "so far")


async def test_a_running_job_is_cancelled_by_the_flag_alone(
    redis_url: str, database_url: str, namespace: str, tmp_path: Path
) -> None:
    async with Mill(redis_url, database_url, namespace, lease_s=2, lease_renew_s=0.05) as mill:
        mill.renew_leases()
        job_id, looking = await running(mill, tmp_path, "so far")
        assert await mill.cancel(job_id, "by flag") == "stopping"
        await settled(looking)
        last = (await mill.events(job_id))[-1][1]
        assert (last["kind"], last["reason"]) == ("cancelled", "by flag")
        assert (await mill.fold(job_id)).text == "so far"


async def test_the_next_turn_of_a_cancelled_conversation_goes_on_from_what_was_shown(
    mill: Mill, tmp_path: Path
) -> None:
    job_id, looking = await running(mill, tmp_path, "so far")
    mill.desk.cancel(job_id, "enough")
    await settled(looking)
    session_id = (await mill.job(job_id))["session_id"]
    following = await mill.answer(script(("history",)), session_id=session_id)
    assert (await mill.fold(following)).text.endswith("assistant:so far")


async def test_a_cancelled_job_that_had_shown_nothing_leaves_the_conversation_as_it_was(
    mill: Mill, tmp_path: Path
) -> None:
    first = await mill.answer(script("one"))
    session_id = (await mill.job(first))["session_id"]
    before = await mill.branch(session_id)
    job_id, looking = await running(mill, tmp_path, session_id=session_id)
    mill.desk.cancel(job_id, "enough")
    await settled(looking)
    assert (await mill.events(job_id))[-1][1]["response"] == []
    assert await mill.branch(session_id) == before
    following = await mill.answer(script(("history",)), session_id=session_id)
    assert (await mill.fold(following)).text.endswith("assistant:one")


async def test_a_flagged_attempt_that_fails_is_cancelled_not_tried_again(mill: Mill, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await mill.accept(script("so far", ("touch", str(begun)), ("until", str(go)), ("raise", "own")))
    looking = mill.looking()
    await file_appears(begun)
    await mill.cancel(job_id)
    go.touch()
    await settled(looking)
    assert await mill.transitions(job_id) == ["accept", "claim", "cancel"]
    assert (await mill.fold(job_id)).text == "so far"


async def test_an_answer_that_commits_before_the_cancel_wins(mill: Mill) -> None:
    job_id = await mill.answer(script("done"))
    assert await mill.cancel(job_id) == "ended"
    mill.desk.cancel(job_id, "too late")
    assert await mill.kinds(job_id) == ["queued", "started", "text", "final"]


async def test_a_deadline_ends_the_running_job_for_good(mill: Mill, tmp_path: Path) -> None:
    job_id, looking = await running(mill, tmp_path, "so far", deadline_s=1)
    await settled(looking)
    assert await mill.transitions(job_id) == ["accept", "claim", "fail"]
    (letter,) = await mill.dead_letters(job_id)
    assert letter["error"]["code"] == "deadline"
    assert (await mill.attempts(job_id))[0]["shown_text"] == "so far"


async def test_a_deadline_that_passes_in_the_queue_ends_the_job_without_running_it(mill: Mill) -> None:
    job_id = await mill.accept(script("never"), deadline_s=0.01)

    async def lapsed() -> bool:
        return (await mill.reconciler.reconcile()).lapsed == 1

    await eventually(lapsed)
    await mill.desk.look()
    assert await mill.kinds(job_id) == ["queued", "failed"]
    assert await mill.transitions(job_id) == ["accept", "lapse"]
    assert (await mill.dead_letters(job_id))[0]["error"]["code"] == "deadline"


async def test_a_retry_that_would_come_after_the_deadline_is_no_retry(
    redis_url: str, database_url: str, namespace: str
) -> None:
    async with Mill(redis_url, database_url, namespace, retry_delay_s=60) as mill:
        job_id = await mill.answer(script(("raise", "own")), deadline_s=10)
        assert await mill.kinds(job_id) == ["queued", "started", "failed"]


async def test_a_handler_deaf_to_cancellation_is_left_behind_and_writes_nothing_more(
    mill: Mill, tmp_path: Path
) -> None:
    begun, release = tmp_path / "begun", tmp_path / "release"
    job_id = await mill.accept(script("a", ("touch", str(begun)), ("ignore", str(release)), " too late"))
    looking = mill.looking()
    await file_appears(begun)
    mill.desk.cancel(job_id, "enough")
    await settled(looking)
    assert await mill.status(job_id) == "cancelled"
    length = len(await mill.events(job_id))
    release.touch()
    following = await mill.answer(script("next"))
    assert await mill.status(following) == "finished"
    assert len(await mill.events(job_id)) == length
    assert (await mill.events(job_id))[-1][0] == EventId(2, 1)


async def test_a_handler_deaf_to_its_time_limit_is_left_behind_and_the_job_tried_again(
    redis_url: str, sqlite_url: str, namespace: str, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    async with Mill(redis_url, sqlite_url, namespace, attempt_timeout_s=0.2) as mill:
        job_id = await mill.answer(scripts(a1=["a", ("ignore", str(release))], a2=["b"]))
        assert (await mill.fold(job_id)).text == "b"
        release.touch()


async def test_an_order_nobody_understands_is_ignored_and_the_next_one_heard(redis_url: str, namespace: str) -> None:
    heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    redis = open_redis(redis_url)
    listening = asyncio.create_task(
        ControlListener(redis, namespace, lambda job_id, reason: heard.put_nowait((job_id, reason))).run()
    )
    orders = [b"\xff", b"[]", b"1", b'{"cancel": 5}', b'{"stop": "x"}', b'{"cancel": "x", "reason": 3}']

    async def sent() -> bool:
        for order in orders:
            await redis.publish(f"{namespace}:control", order)
        await send_cancel(redis, namespace, "job", "why")
        return not heard.empty()

    await eventually(sent)
    assert await heard.get() == ("job", "why")
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await redis.aclose()
