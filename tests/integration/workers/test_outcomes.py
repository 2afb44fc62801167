"""Every way an attempt can end, from acceptance to the terminal event, on both databases."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from schemas.job_event import EventId
from storage.tables import messages
from tests.integration.workers.mill import Mill
from tests.integration.workers.scripted import script, scripts

CALL = {"id": "c1", "name": "clock", "status": "started", "args": {"zone": "utc"}}
RESULT = {"id": "c1", "name": "clock", "status": "finished", "result": "noon"}


async def test_an_answer_is_shown_saved_and_told_alike(mill: Mill) -> None:
    job_id = await mill.answer(script("Hel", ("tool", CALL), ("tool", RESULT), "lo"))
    events = await mill.events(job_id)
    assert [event["kind"] for _, event in events] == ["queued", "started", "text", "tool", "tool", "text", "final"]
    assert [event_id for event_id, _ in events] == [(0, 1), (1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 1)]
    final = events[-1][1]
    job = await mill.job(job_id)
    assert (job["status"], job["outcome"], job["epoch"], job["attempt"]) == ("finished", "ok", 2, 1)
    assert final["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    saved = await mill.rows(messages, job_id=job_id, role="assistant")
    assert [row["id"] for row in saved] == final["message_ids"]
    assert "".join(row["content"] for row in saved) == (await mill.fold(job_id)).text == "Hello"
    assert events[1][1]["worker"] == mill.desk.worker_id


async def test_an_attempt_that_failed_is_tried_once_more_and_may_finish(mill: Mill) -> None:
    job_id = await mill.answer(scripts(a1=["wrong", ("raise", "own")], a2=["right"]))
    assert await mill.kinds(job_id) == ["queued", "started", "text", "retrying", "started", "text", "final"]
    assert await mill.transitions(job_id) == ["accept", "claim", "fail", "claim", "finish"]
    assert (await mill.fold(job_id)).text == "right"
    first, second = await mill.attempts(job_id)
    assert (first["ending"], first["error_class"], first["shown_text"]) == ("fail", "HomeMadeError", "wrong")
    assert (second["ending"], second["error"]) == ("finish", None)
    retrying = (await mill.events(job_id))[3][1]
    assert retrying["error"]["code"] == "agent_error"
    assert "nobody's business" not in str(retrying)


async def test_after_a_second_failure_the_job_is_dead_with_everything_kept(mill: Mill) -> None:
    job_id = await mill.answer(script("so far", ("tool", CALL), ("raise", "own")))
    assert await mill.kinds(job_id) == [
        "queued", "started", "text", "tool", "retrying", "started", "text", "tool", "failed",
    ]  # fmt: skip
    assert (await mill.fold(job_id)).text == ""
    for attempt in await mill.attempts(job_id):
        assert attempt["error"]["code"] == "agent_error"
        assert attempt["error_class"] == "HomeMadeError"
        assert "nobody's business" in attempt["trace"]
        assert (attempt["shown_text"], attempt["shown_tools"]) == ("so far", [CALL])
    (letter,) = await mill.dead_letters(job_id)
    failed = (await mill.events(job_id))[-1][1]
    assert letter["id"] == failed["dead_letter_id"]
    assert (letter["error"], letter["resolution"]) == (failed["error"], None)
    assert (await mill.job(job_id))["error_code"] == "agent_error"
    assert await mill.rows(messages, job_id=job_id, role="assistant") == []


async def test_what_cannot_succeed_is_dead_at_once(mill: Mill) -> None:
    job_id = await mill.answer(script("a", ("raise", "useless")))
    assert await mill.kinds(job_id) == ["queued", "started", "text", "failed"]
    assert (await mill.dead_letters(job_id))[0]["error"]["code"] == "too_long"


async def test_a_busy_provider_uses_no_retry_however_often(mill: Mill) -> None:
    busy = [("raise", "busy")]
    job_id = await mill.answer(scripts(a1=busy, a2=busy, a3=busy, otherwise=["at last"]))
    assert await mill.transitions(job_id) == [
        "accept", "claim", "defer", "claim", "defer", "claim", "defer", "claim", "finish",
    ]  # fmt: skip
    job = await mill.job(job_id)
    assert (job["status"], job["failures"]) == ("finished", 0)


async def test_a_busy_provider_does_not_forgive_a_failure(mill: Mill) -> None:
    job_id = await mill.answer(scripts(a1=[("raise", "own")], a2=[("raise", "busy")], otherwise=[("raise", "own")]))
    assert await mill.transitions(job_id) == ["accept", "claim", "fail", "claim", "defer", "claim", "fail"]
    assert await mill.status(job_id) == "dead"


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        (["a", ("nothing",)], "no_answer"),
        (["a", ("final", "b")], "stream_mismatch"),
        ([("tool", {**CALL, "args": "none"})], "agent_error"),
        ([("tool", {"id": "c"})], "agent_error"),
    ],
)
async def test_a_handler_that_breaks_its_contract_fails_its_job_and_no_other(
    lite_mill: Mill, steps: list[Any], code: str
) -> None:
    bad = await lite_mill.accept(script(*steps))
    good = await lite_mill.answer(script("fine"))
    assert (await lite_mill.job(bad))["error_code"] == code
    assert await lite_mill.status(good) == "finished"
    assert (await lite_mill.kinds(bad))[-1] == "failed"


async def test_an_attempt_that_takes_too_long_is_tried_again(redis_url: str, database_url: str, namespace: str) -> None:
    async with Mill(redis_url, database_url, namespace, attempt_timeout_s=0.3) as mill:
        job_id = await mill.answer(scripts(a1=["slow", ("until", "/nowhere")], a2=["quick"]))
        assert await mill.transitions(job_id) == ["accept", "claim", "fail", "claim", "finish"]
        first, _ = await mill.attempts(job_id)
        assert (first["error"]["code"], first["shown_text"]) == ("timeout", "slow")


async def test_text_no_database_takes_is_shown_and_saved_mended(mill: Mill) -> None:
    job_id = await mill.answer(
        script("nul\x00 half\ud83d", " pair\ud83d", "\ude00", ("tool", {**CALL, "args": {"\x00": "\ud800"}}))
    )
    fold = await mill.fold(job_id)
    assert fold.text == "nul� half� pair😀"
    (saved,) = await mill.rows(messages, job_id=job_id, role="assistant")
    assert saved["content"] == fold.text
    assert fold.tools[0]["args"] == {"�": "�"}


async def test_the_words_of_a_failure_no_database_takes_are_kept_mended(mill: Mill) -> None:
    job_id = await mill.answer(script("\x00\ud800", ("tool", {**CALL, "name": "\x00"}), ("raise", "own")))
    attempt = (await mill.attempts(job_id))[0]
    assert (attempt["shown_text"], attempt["shown_tools"][0]["name"]) == ("��", "�")
    assert await mill.status(job_id) == "dead"


async def test_the_jobs_of_one_session_are_answered_in_order_each_knowing_the_last_answer(mill: Mill) -> None:
    first = await mill.accept(script("one"))
    session_id = (await mill.job(first))["session_id"]
    rest = [await mill.accept(script(("history",)), session_id=session_id) for _ in range(3)]
    assert (await mill.kinds(rest[0])) == ["queued"]
    await asyncio.gather(*(mill.desk.look() for _ in range(4)))
    started = [(await mill.job(job_id))["started_at"] for job_id in (first, *rest)]
    assert started == sorted(started)
    texts = [content for role, content in await mill.branch(session_id) if role == "assistant"]
    assert texts[0] == "one"
    assert all(texts[place] in texts[place + 1] for place in range(3))


async def test_a_failed_job_passes_its_session_on_to_the_next_one(mill: Mill) -> None:
    first = await mill.accept(script(("raise", "useless")))
    session_id = (await mill.job(first))["session_id"]
    second = await mill.answer(script("still here"), session_id=session_id)
    assert await mill.status(first) == "dead"
    assert await mill.status(second) == "finished"


async def test_sessions_are_answered_side_by_side(mill: Mill, tmp_path: Path) -> None:
    # Each waits for the other to have begun.
    a, b = tmp_path / "a", tmp_path / "b"
    jobs = [
        await mill.accept(script("a", ("touch", str(a)), ("until", str(b)))),
        await mill.accept(script("b", ("touch", str(b)), ("until", str(a)))),
    ]
    async with asyncio.timeout(10):
        await asyncio.gather(mill.desk.look(), mill.desk.look())
    assert [await mill.status(job_id) for job_id in jobs] == ["finished", "finished"]


async def test_one_ring_answers_all_that_is_due(mill: Mill) -> None:
    jobs = [await mill.accept(script(f"{place}")) for place in range(5)]
    await mill.desk.look()
    assert [await mill.status(job_id) for job_id in jobs] == ["finished"] * 5


async def test_forty_attempts_at_once_mix_no_text(lite_mill: Mill) -> None:
    jobs = {await lite_mill.accept(script(*(f"<{place}>" for _ in range(20)))): place for place in range(40)}
    await asyncio.gather(*(lite_mill.desk.look() for _ in range(40)))
    for job_id, place in jobs.items():
        fold = await lite_mill.fold(job_id)
        assert fold.text == f"<{place}>" * 20
        assert fold.terminal is not None
        assert fold.last_id == EventId(2, 1)


async def test_the_joined_text_of_the_events_is_the_saved_answer_before_the_end_says_so(lite_mill: Mill) -> None:
    job_id = await lite_mill.answer(script(*"streamed", ("tool", CALL), ("tool", RESULT), *" in pieces"))
    *before, (_, final) = await lite_mill.events(job_id)
    said = "".join(event["text"] for _, event in before if event["kind"] == "text")
    assert said == "".join(m["content"] for m in final["response"])
