"""Redis may go away or forget at any moment: no accepted job, no answer and no end of a stream is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cli.valkey import Valkey
from schemas.job_event import TERMINAL_KINDS
from storage.jobs.claim import claim
from storage.jobs.settle import rebuild
from tests.integration.workers.mill import Mill, eventually, file_appears
from tests.integration.workers.scripted import script, scripts
from workers import event_writer, reconciler, settlement
from workers.ring import waiting_rings


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "RETRY_S", (0.01,))
    monkeypatch.setattr(settlement, "LOG_TIMEOUT_S", 0.2)
    monkeypatch.setattr(reconciler, "RING_PATIENCE_S", 0.0)
    monkeypatch.setattr(reconciler, "PATIENCE_S", 0.0)


@pytest_asyncio.fixture
async def mill(own_valkey: Valkey, sqlite_url: str, namespace: str) -> AsyncIterator[Mill]:
    async with Mill(own_valkey.url, sqlite_url, namespace) as mill:
        yield mill


async def caught_up(mill: Mill, job_id: str) -> list[str]:
    """The kinds of the job's events once the reconciler has done what was left to it."""

    async def has_end() -> bool:
        await mill.reconciler.reconcile()
        kinds = await mill.kinds(job_id)
        return bool(kinds) and kinds[-1] in TERMINAL_KINDS

    await eventually(has_end)
    for _ in range(3):
        await mill.reconciler.reconcile()
    kinds = await mill.kinds(job_id)
    assert sum(kind in TERMINAL_KINDS for kind in kinds) == 1
    return kinds


async def test_a_job_accepted_without_redis_is_rung_for_when_it_is_back(mill: Mill, own_valkey: Valkey) -> None:
    await own_valkey.kill()
    job_id = await mill.accept(script("a"))
    assert await mill.status(job_id) == "queued"
    await own_valkey.start()
    assert (await mill.reconciler.reconcile()).rung == 1
    assert await waiting_rings(mill.redis, mill.settings.namespace, "chat") == 1
    await mill.desk.look()
    assert await caught_up(mill, job_id) == ["queued", "started", "text", "final"]


async def test_redis_away_for_the_whole_life_of_a_job_costs_only_its_events(mill: Mill, own_valkey: Valkey) -> None:
    await own_valkey.kill()
    job_id = await mill.answer(script("a", "b"))
    assert await mill.status(job_id) == "finished"
    await own_valkey.start()
    assert await caught_up(mill, job_id) == ["final"]
    assert (await mill.fold(job_id)).text == "ab"


async def test_redis_away_between_two_tokens_loses_none(mill: Mill, own_valkey: Valkey, tmp_path: Path) -> None:
    begun, go, shown, end = (tmp_path / name for name in ("begun", "go", "shown", "end"))
    job_id = await mill.accept(
        script("a", ("touch", str(begun)), ("until", str(go)), "b", ("touch", str(shown)), ("until", str(end)), "c")
    )
    looking = mill.looking()
    await file_appears(begun)
    await own_valkey.kill()
    go.touch()
    await file_appears(shown)
    await own_valkey.start()

    async def resumed() -> bool:
        return (await mill.fold(job_id)).text == "ab"

    await eventually(resumed)
    end.touch()
    await looking
    kinds = await mill.kinds(job_id)
    assert kinds[-1] == "final"
    assert kinds.count("started") + kinds.count("snapshot") >= 1
    assert (await mill.fold(job_id)).text == "abc"


async def test_redis_away_at_the_end_leaves_the_end_to_the_reconciler(
    mill: Mill, own_valkey: Valkey, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
    looking = mill.looking()
    await file_appears(begun)
    await own_valkey.kill()
    go.touch()
    await looking
    assert await mill.status(job_id) == "finished"
    await own_valkey.start()
    assert (await caught_up(mill, job_id))[-1] == "final"
    assert (await mill.fold(job_id)).text == "ab"


async def test_a_redis_that_hangs_holds_up_no_answer(mill: Mill, own_valkey: Valkey, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
    looking = mill.looking()
    await file_appears(begun)
    await mill.redis.client_pause(60_000)
    go.touch()
    async with asyncio.timeout(10):
        await looking
    assert await mill.status(job_id) == "finished"
    await own_valkey.kill()
    await own_valkey.start()
    assert (await caught_up(mill, job_id))[-1] == "final"


@pytest.mark.parametrize("times", [1, 3])
async def test_a_log_flushed_in_the_middle_of_an_answer_is_rebuilt(
    own_valkey: Valkey, database_url: str, namespace: str, tmp_path: Path, times: int
) -> None:
    async with Mill(own_valkey.url, database_url, namespace) as mill:
        await _flush_in_the_middle(mill, tmp_path, times)


async def _flush_in_the_middle(mill: Mill, tmp_path: Path, times: int) -> None:
    steps: list[object] = ["<0>"]
    for place in range(times):
        steps += [("touch", str(tmp_path / f"at{place}")), ("until", str(tmp_path / f"go{place}")), f"<{place + 1}>"]
    steps += [("touch", str(tmp_path / "last")), ("until", str(tmp_path / "end"))]
    job_id = await mill.accept(script(*steps))
    looking = mill.looking()
    for place in range(times):
        await file_appears(tmp_path / f"at{place}")
        await mill.redis.flushall()
        (tmp_path / f"go{place}").touch()
    await file_appears(tmp_path / "last")
    whole = "".join(f"<{place}>" for place in range(times + 1))

    async def rebuilt() -> bool:
        return (await mill.fold(job_id)).text == whole

    # Before the terminal event, whose whole answer would hide a hole.
    await eventually(rebuilt)
    (tmp_path / "end").touch()
    await looking
    kinds = await mill.kinds(job_id)
    assert kinds[0] == "snapshot"
    assert kinds[-1] == "final"
    assert (await mill.fold(job_id)).text == whole
    assert (await mill.transitions(job_id)).count("rebuild") >= 1


async def test_a_log_flushed_while_a_reconciler_repeats_events_still_ends_whole(mill: Mill, tmp_path: Path) -> None:
    begun, go, last, end = (tmp_path / name for name in ("begun", "go", "last", "end"))
    job_id = await mill.accept(
        script("a", ("touch", str(begun)), ("until", str(go)), "b", ("touch", str(last)), ("until", str(end)))
    )
    looking = mill.looking()
    await file_appears(begun)
    await mill.redis.flushall()
    assert (await mill.reconciler.reconcile()).appended == 1  # `started`, as if nothing had been said yet
    go.touch()
    await file_appears(last)

    async def rebuilt() -> bool:
        return (await mill.fold(job_id)).text == "ab"

    await eventually(rebuilt)
    await mill.reconciler.reconcile()
    assert (await mill.fold(job_id)).text == "ab"
    end.touch()
    await looking
    assert (await mill.fold(job_id)).text == "ab"


async def test_a_log_flushed_after_the_last_token_has_its_end_and_the_whole_answer(mill: Mill, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await mill.accept(script("a", ("touch", str(begun)), ("until", str(go))))
    looking = mill.looking()
    await file_appears(begun)

    async def shown() -> bool:
        return (await mill.fold(job_id)).text == "a"

    await eventually(shown)
    await mill.redis.flushall()
    go.touch()
    await looking
    assert (await mill.kinds(job_id)) == ["final"]
    assert (await mill.fold(job_id)).text == "a"


async def test_the_event_of_a_rebuild_is_appended_by_nobody_but_its_writer(mill: Mill) -> None:
    job_id = await mill.accept(script("a"))
    claimed = await mill.database.write(claim, "chat", "a worker that dies", 60_000_000)
    assert claimed is not None
    await mill.database.write(rebuild, job_id, claimed.epoch, "what was shown", [])
    await mill.redis.flushall()
    await mill.reconciler.reconcile()
    assert await mill.kinds(job_id) == []


async def test_a_lost_ring_is_rung_again(mill: Mill) -> None:
    jobs = [await mill.accept(script(str(place))) for place in range(3)]
    await mill.redis.flushall()
    assert (await mill.reconciler.reconcile()).rung == 3
    assert (await mill.reconciler.reconcile()).rung == 0, "the rings that wait are enough"
    await mill.desk.look()
    assert [await mill.status(job_id) for job_id in jobs] == ["finished"] * 3


async def test_a_job_that_waits_for_its_session_or_its_due_time_is_not_rung_for(
    own_valkey: Valkey, sqlite_url: str, namespace: str
) -> None:
    async with Mill(own_valkey.url, sqlite_url, namespace, retry_delay_s=60) as mill:
        first = await mill.answer(script(("raise", "own")))
        session_id = (await mill.job(first))["session_id"]
        await mill.accept(script("behind it"), session_id=session_id)
        await mill.redis.flushall()
        assert (await mill.reconciler.reconcile()).rung == 0


async def test_the_worker_whose_attempt_failed_rings_when_the_retry_is_due(
    own_valkey: Valkey, sqlite_url: str, namespace: str
) -> None:
    async with Mill(own_valkey.url, sqlite_url, namespace, retry_delay_s=0.05) as mill:
        job_id = await mill.answer(scripts(a1=[("raise", "own")], a2=["b"]))
        await mill.redis.flushall()

        async def rung() -> bool:
            return await waiting_rings(mill.redis, namespace, "chat") == 1

        await eventually(rung)
        await mill.desk.look()
        assert await mill.status(job_id) == "finished"


async def test_events_of_an_outage_longer_than_the_reconciler_looks_back_are_not_forgotten(
    mill: Mill, own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "LOOK_BACK_S", 0.05)
    monkeypatch.setattr(reconciler, "SETTLE_S", 0.05)
    await own_valkey.kill()
    await mill.reconciler.reconcile()  # a worker that has started into the outage
    job_id = await mill.answer(script("a"))
    ended_at = (await mill.job(job_id))["ended_at"]

    async def long_after() -> bool:
        await mill.reconciler.reconcile()
        return await mill.now_us() - int(ended_at) > 200_000

    await eventually(long_after)
    await own_valkey.start()
    assert await caught_up(mill, job_id) == ["final"]


async def test_two_reconcilers_append_and_ring_no_more_than_one(
    own_valkey: Valkey, mill: Mill, sqlite_url: str, namespace: str
) -> None:
    async with Mill(own_valkey.url, sqlite_url, namespace) as other:
        await own_valkey.kill()
        jobs = [await mill.answer(script(str(place))) for place in range(5)]
        await own_valkey.start()

        async def all_told() -> bool:
            await asyncio.gather(mill.reconciler.reconcile(), other.reconciler.reconcile())
            return all([await mill.kinds(job_id) for job_id in jobs])

        await eventually(all_told)
        await asyncio.gather(mill.reconciler.reconcile(), other.reconciler.reconcile())
        assert [await mill.kinds(job_id) for job_id in jobs] == [["final"]] * 5


async def test_a_redis_without_room_holds_up_no_answer(own_valkey: Valkey, mill: Mill, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
    looking = mill.looking()
    await file_appears(begun)
    await mill.redis.config_set("maxmemory", "1")
    go.touch()
    async with asyncio.timeout(10):
        await looking
    assert await mill.status(job_id) == "finished"
    second = await mill.answer(script("accepted all the same"))
    assert await mill.status(second) == "finished"
    await mill.redis.config_set("maxmemory", "0")
    assert (await caught_up(mill, job_id))[-1] == "final"
    assert (await caught_up(mill, second))[-1] == "final"
