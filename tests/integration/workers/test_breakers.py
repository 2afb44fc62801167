"""A provider that fails job after job: its jobs wait uncharged, and one tries now and then until it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from schemas.models import ModelEntry
from storage.breakers import list_breakers, reset
from storage.tables import attempts, breakers, jobs
from tests.integration.workers.mill import Mill, eventually
from tests.integration.workers.providers import QUICK, SHAKY, STEADY, answers, fails, opened, working
from tests.integration.workers.scripted import script, scripts


@pytest_asyncio.fixture
async def mill(redis_url: str, database_url: str, namespace: str) -> AsyncIterator[Mill]:
    async with Mill(redis_url, database_url, namespace, **QUICK) as mill:
        yield mill


@pytest_asyncio.fixture
async def patient(redis_url: str, database_url: str, namespace: str) -> AsyncIterator[Mill]:
    """A mill whose breakers stay open for longer than any test."""
    async with Mill(redis_url, database_url, namespace, **{**QUICK, "breaker_pause_s": 60.0}) as mill:
        yield mill


@pytest.fixture
def down(tmp_path: Path) -> Path:
    return tmp_path / "down"


async def all_with(mill: Mill, status: str, job_ids: list[str]) -> list[dict[str, Any]]:
    async def look() -> list[dict[str, Any]]:
        found = await mill.rows(jobs, status=status)
        return found if {row["id"] for row in found} >= set(job_ids) else []

    return await eventually(look)


async def held_jobs(mill: Mill, count: int) -> list[dict[str, Any]]:
    async def look() -> list[dict[str, Any]]:
        found = await mill.rows(jobs, held_by=SHAKY)
        return found if len(found) >= count else []

    return await eventually(look)


async def test_a_hundred_jobs_of_a_dead_provider_wait_and_none_of_them_dies(mill: Mill, down: Path) -> None:
    fails(down)
    waiting = [await mill.accept(str(down), model="shaky") for _ in range(100)]
    async with working(mill):

        async def failed_probes() -> list[dict[str, Any]]:
            found = [row for row in await mill.rows(attempts) if row["ending"] == "defer"]
            return found if len(found) >= 2 else []

        probes = await eventually(failed_probes)
        charged = [row for row in await mill.rows(jobs) if row["failures"]]
        assert 3 <= len(charged) < 3 + 4, "the threshold, and who ran beside it"
        assert {row["failures"] for row in charged} == {1}
        assert all(row["epoch"] == 0 for row in await mill.rows(jobs, attempt=0)), "no epoch for whoever only waits"
        assert len(probes) == len({row["job_id"] for row in probes}), "each time another one tries"
        answers(down)
        assert len(await all_with(mill, "finished", waiting)) == 100
    assert await mill.rows(breakers) == []
    assert len(await mill.rows(attempts)) == 100 + len([one for one in await mill.rows(attempts) if one["error"]])


async def test_an_answer_frees_all_who_wait(mill: Mill, down: Path) -> None:
    failed = await opened(mill, down)
    later = [await mill.accept(str(down), model="shaky") for _ in range(30)]
    async with working(mill):
        await held_jobs(mill, 30)
        answers(down)

        async def closed() -> bool:
            return await mill.rows(breakers) == []

        await eventually(closed)

        async def nobody_is_held() -> bool:
            return not [row for row in await mill.rows(jobs, status="queued") if row["held_by"]]

        await eventually(nobody_is_held)
        await all_with(mill, "finished", failed + later)


async def test_whoever_is_freed_is_rung_for_at_once(patient: Mill, down: Path) -> None:
    await opened(patient, down)
    for _ in range(4):
        await patient.accept(str(down), model="shaky")
    await patient.redis.delete(f"{patient.settings.namespace}:chat")
    await patient.desk.look()
    await held_jobs(patient, 4)
    await patient.database.write(reset, SHAKY)
    done = await patient.reconciler.reconcile()
    assert done.freed == done.rung == len(await patient.rows(jobs, status="queued"))
    assert await patient.redis.llen(f"{patient.settings.namespace}:chat") == done.rung


async def test_other_models_and_agents_without_one_go_on_meanwhile(patient: Mill, down: Path, tmp_path: Path) -> None:
    await opened(patient, down)
    held = await patient.accept(str(down), model="shaky", priority=5)
    steady = await patient.accept(str(tmp_path / "up"), model="steady")
    echo = await patient.accept("hello", agent_framework="echo", model="shaky")
    await patient.desk.look()
    assert await patient.status(held) == "queued"
    assert [await patient.status(job_id) for job_id in (steady, echo)] == ["finished", "finished"]
    assert await patient.transitions(held) == ["accept"]


async def test_a_session_keeps_its_order_while_its_first_job_waits(mill: Mill, down: Path, tmp_path: Path) -> None:
    await opened(mill, down)
    first = await mill.accept(str(down), model="shaky")
    session_id = (await mill.job(first))["session_id"]
    second = await mill.accept(str(tmp_path / "up"), session_id=session_id, model="steady")
    await mill.desk.look()
    assert await mill.status(second) == "queued"
    async with working(mill):
        answers(down)
        await all_with(mill, "finished", [first, second])
    ended = {row["id"]: row["ended_at"] for row in await mill.rows(jobs)}
    assert ended[first] < ended[second]


async def test_a_waiting_job_is_cancelled_at_once(patient: Mill, down: Path) -> None:
    await opened(patient, down)
    job_id = await patient.accept(str(down), model="shaky")
    await patient.desk.look()
    await held_jobs(patient, 1)
    assert await patient.cancel(job_id) == "cancelled"
    assert await patient.kinds(job_id) == ["queued", "cancelled"]


async def test_a_waiting_job_lapses_at_its_deadline(patient: Mill, down: Path) -> None:
    await opened(patient, down)
    job_id = await patient.accept(str(down), model="shaky", deadline_s=0.2)
    async with working(patient):
        row = await patient.ended(job_id)
    assert (row["status"], row["error_code"], row["attempt"]) == ("dead", "deadline", 0)


async def test_a_breaker_reset_by_hand_lets_all_go(patient: Mill, down: Path) -> None:
    failed = await opened(patient, down)
    later = [await patient.accept(str(down), model="shaky") for _ in range(5)]
    async with working(patient):
        await held_jobs(patient, 5)
        answers(down)
        await patient.database.write(reset, SHAKY)
        await all_with(patient, "finished", failed + later)


async def test_a_probe_whose_worker_dies_does_not_block_the_others(
    redis_url: str, sqlite_url: str, namespace: str, down: Path
) -> None:
    quick = {**QUICK, "lease_s": 0.6, "lease_renew_s": 0.2, "attempt_timeout_s": 60.0}
    async with Mill(redis_url, sqlite_url, namespace, **quick) as mill:
        failed = await opened(mill, down)
        later = [await mill.accept(str(down), model="shaky") for _ in range(5)]
        await mill.desk.look()
        answers(down)

        async def probing() -> bool:
            await mill.reconciler.reconcile()
            return await mill.desk.claim_next() is not None

        await eventually(probing)  # nobody will ever run it
        mill.renew_leases()
        async with working(mill):
            await all_with(mill, "finished", failed + later)


async def test_what_is_no_fault_of_the_provider_is_not_counted(mill: Mill) -> None:
    about = {"agent_framework": "scripted", "model": "shaky"}
    for _ in range(4):
        await mill.answer(scripts(a1=[("raise", "busy")], otherwise=["ok"]), **about)
        await mill.answer(script(("raise", "useless")), **about)
        await mill.answer(scripts(a1=[("raise", "own")], otherwise=["ok"]), **about)
    assert await mill.rows(breakers) == []


async def test_the_second_attempt_asks_the_fallback_and_counts_for_the_first(mill: Mill) -> None:
    message = scripts(a1=[("raise", "again")], otherwise=["ok"])
    about = {"agent_framework": "scripted", "model": "shaky", "fallback_model": "steady"}
    job_id = await mill.answer(message, **about)
    assert await mill.status(job_id) == "finished"
    assert [one["model"] for one in await mill.attempts(job_id)] == ["shaky", "steady"]
    found = await mill.database.read(list_breakers)
    assert [(one["name"], one["failures"]) for one in found] == [(SHAKY, 1)]


async def test_a_fallback_has_a_breaker_of_its_own(mill: Mill) -> None:
    about = {"agent_framework": "scripted", "model": "shaky", "fallback_model": "steady"}
    job_id = await mill.answer(script(("raise", "again")), **about)
    assert await mill.status(job_id) == "dead"
    found = await mill.database.read(list_breakers)
    assert [(one["name"], one["failures"]) for one in found] == [(SHAKY, 1), (STEADY, 1)]


async def test_with_a_fallback_jobs_that_failed_go_on_while_the_first_model_is_left_alone(
    patient: Mill, down: Path, tmp_path: Path
) -> None:
    fails(down)
    about = {"agent_framework": "scripted", "model": "shaky", "fallback_model": "steady"}
    message = scripts(a1=[("raise", "again")], otherwise=["ok"])
    failed = [await patient.accept(message, **about) for _ in range(3)]
    waiting = await patient.accept(message, **about)
    async with asyncio.timeout(20):
        await patient.desk.look()
    assert [await patient.status(job_id) for job_id in failed] == ["finished"] * 3
    assert await patient.status(waiting) == "queued"


async def test_the_name_of_a_breaker_holds_no_credentials(redis_url: str, sqlite_url: str, namespace: str) -> None:
    models = {"shaky": ModelEntry(base_url="https://me:secret@shaky.example/v1", model="their-name")}
    async with Mill(redis_url, sqlite_url, namespace, **{**QUICK, "models": models, "model": "shaky"}) as mill:
        assert mill.desk.breakers.name_of("provider", None) == "shaky.example/their-name"
        assert mill.desk.breakers.name_of("echo", None) is None
        assert mill.desk.breakers.name_of("provider", "unknown") is None
