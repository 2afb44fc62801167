"""A worker that is told to end: short answers end, long ones go back without using their retry."""

from __future__ import annotations

from pathlib import Path

from tests.integration.workers.mill import NOWHERE, Mill, eventually, file_appears, settled
from tests.integration.workers.scripted import script, scripts


async def test_a_shutdown_lets_a_short_answer_end(mill: Mill, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
    looking = mill.looking()
    await file_appears(begun)
    mill.desk.begin_shutdown()
    go.touch()
    await settled(looking)
    assert (await mill.fold(job_id)).text == "ab"
    assert await mill.transitions(job_id) == ["accept", "claim", "finish"]


async def test_a_shutdown_gives_a_long_answer_back_without_using_its_retry(
    redis_url: str, database_url: str, namespace: str, tmp_path: Path
) -> None:
    async with Mill(redis_url, database_url, namespace, shutdown_grace_s=0.05) as mill:
        begun = tmp_path / "begun"
        job_id = await mill.accept(scripts(a1=["half", ("touch", str(begun)), NOWHERE], otherwise=["whole"]))
        looking = mill.looking()
        await file_appears(begun)
        await mill.desk.close()
        await settled(looking)
        job = await mill.job(job_id)
        assert (job["status"], job["failures"], job["releases"], job["worker"]) == ("queued", 0, 1, None)
        assert (await mill.kinds(job_id))[-1] == "requeued"
    async with Mill(redis_url, database_url, namespace) as other:
        await other.desk.look()
        assert (await other.fold(job_id)).text == "whole"


async def test_a_closing_worker_claims_nothing(mill: Mill) -> None:
    job_id = await mill.accept(script("a"))
    mill.desk.begin_shutdown()
    await mill.desk.look()
    assert await mill.status(job_id) == "queued"


async def test_six_shutdowns_under_one_job_count_as_a_failure(
    redis_url: str, database_url: str, namespace: str, tmp_path: Path
) -> None:
    async with Mill(redis_url, database_url, namespace) as first:
        job_id = await first.accept(script("half", NOWHERE))
    for _ in range(6):
        async with Mill(redis_url, database_url, namespace, shutdown_grace_s=0) as mill:
            looking = mill.looking()
            await eventually(lambda: _is_running(mill, job_id))
            await mill.desk.close()
            await settled(looking)
    async with Mill(redis_url, database_url, namespace) as last:
        assert await last.transitions(job_id) == ["accept", *["claim", "release"] * 5, "claim", "fail"]
        assert (await last.job(job_id))["failures"] == 1


async def _is_running(mill: Mill, job_id: str) -> bool:
    return await mill.status(job_id) == "running"
