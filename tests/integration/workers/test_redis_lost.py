"""Redis may go away or forget at any moment: no accepted job, no answer and no end of a stream is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cli.valkey import Valkey
from tests.integration.workers.mill import Mill, caught_up, eventually, file_appears
from tests.integration.workers.scripted import script
from workers import event_writer, reconciler, settlement
from workers.ring import waiting_rings


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "RETRY_S", (0.01,))
    monkeypatch.setattr(settlement, "LOG_TIMEOUT_S", 0.2)
    monkeypatch.setattr(reconciler, "RING_PATIENCE_S", 0.0)
    monkeypatch.setattr(reconciler, "PATIENCE_S", 0.0)


async def test_a_job_accepted_without_redis_is_rung_for_when_it_is_back(own_mill: Mill, own_valkey: Valkey) -> None:
    await own_valkey.kill()
    job_id = await own_mill.accept(script("a"))
    assert await own_mill.status(job_id) == "queued"
    await own_valkey.start()
    assert (await own_mill.reconciler.reconcile()).rung == 1
    assert await waiting_rings(own_mill.redis, own_mill.settings.namespace, "chat") == 1
    await own_mill.desk.look()
    assert await caught_up(own_mill, job_id) == ["queued", "started", "text", "final"]


async def test_redis_away_for_the_whole_life_of_a_job_costs_only_its_events(own_mill: Mill, own_valkey: Valkey) -> None:
    await own_valkey.kill()
    job_id = await own_mill.answer(script("a", "b"))
    assert await own_mill.status(job_id) == "finished"
    await own_valkey.start()
    assert await caught_up(own_mill, job_id) == ["final"]
    assert (await own_mill.fold(job_id)).text == "ab"


async def test_redis_away_between_two_tokens_loses_none(own_mill: Mill, own_valkey: Valkey, tmp_path: Path) -> None:
    begun, go, shown, end = (tmp_path / name for name in ("begun", "go", "shown", "end"))
    job_id = await own_mill.accept(
        script("a", ("touch", str(begun)), ("until", str(go)), "b", ("touch", str(shown)), ("until", str(end)), "c")
    )
    looking = own_mill.looking()
    await file_appears(begun)
    await own_valkey.kill()
    go.touch()
    await file_appears(shown)
    await own_valkey.start()

    async def resumed() -> bool:
        return (await own_mill.fold(job_id)).text == "ab"

    await eventually(resumed)
    end.touch()
    await looking
    kinds = await own_mill.kinds(job_id)
    assert kinds[-1] == "final"
    assert kinds.count("started") + kinds.count("snapshot") >= 1
    assert (await own_mill.fold(job_id)).text == "abc"


async def test_redis_away_at_the_end_leaves_the_end_to_the_reconciler(
    own_mill: Mill, own_valkey: Valkey, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await own_mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
    looking = own_mill.looking()
    await file_appears(begun)
    await own_valkey.kill()
    go.touch()
    await looking
    assert await own_mill.status(job_id) == "finished"
    await own_valkey.start()
    assert (await caught_up(own_mill, job_id))[-1] == "final"
    assert (await own_mill.fold(job_id)).text == "ab"


async def test_a_redis_that_hangs_holds_up_no_answer(own_mill: Mill, own_valkey: Valkey, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await own_mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
    looking = own_mill.looking()
    await file_appears(begun)
    await own_mill.redis.client_pause(60_000)
    go.touch()
    async with asyncio.timeout(10):
        await looking
    assert await own_mill.status(job_id) == "finished"
    await own_valkey.kill()
    await own_valkey.start()
    assert (await caught_up(own_mill, job_id))[-1] == "final"


@pytest.mark.parametrize("times", [1, 3])
async def test_a_log_flushed_in_the_middle_of_an_answer_is_rebuilt(
    own_valkey: Valkey, database_url: str, namespace: str, tmp_path: Path, times: int
) -> None:
    async with Mill(own_valkey.url, database_url, namespace) as own_mill:
        await _flush_in_the_middle(own_mill, tmp_path, times)


async def _flush_in_the_middle(own_mill: Mill, tmp_path: Path, times: int) -> None:
    steps: list[object] = ["<0>"]
    for place in range(times):
        steps += [("touch", str(tmp_path / f"at{place}")), ("until", str(tmp_path / f"go{place}")), f"<{place + 1}>"]
    steps += [("touch", str(tmp_path / "last")), ("until", str(tmp_path / "end"))]
    job_id = await own_mill.accept(script(*steps))
    looking = own_mill.looking()
    for place in range(times):
        await file_appears(tmp_path / f"at{place}")
        await own_mill.redis.flushall()
        (tmp_path / f"go{place}").touch()
    await file_appears(tmp_path / "last")
    whole = "".join(f"<{place}>" for place in range(times + 1))

    async def rebuilt() -> bool:
        return (await own_mill.fold(job_id)).text == whole

    # Before the terminal event, whose whole answer would hide a hole.
    await eventually(rebuilt)
    (tmp_path / "end").touch()
    await looking
    kinds = await own_mill.kinds(job_id)
    assert kinds[0] == "snapshot"
    assert kinds[-1] == "final"
    assert (await own_mill.fold(job_id)).text == whole
    assert (await own_mill.transitions(job_id)).count("rebuild") >= 1


async def test_a_log_flushed_while_a_reconciler_repeats_events_still_ends_whole(own_mill: Mill, tmp_path: Path) -> None:
    begun, go, last, end = (tmp_path / name for name in ("begun", "go", "last", "end"))
    job_id = await own_mill.accept(
        script("a", ("touch", str(begun)), ("until", str(go)), "b", ("touch", str(last)), ("until", str(end)))
    )
    looking = own_mill.looking()
    await file_appears(begun)
    await own_mill.redis.flushall()
    assert (await own_mill.reconciler.reconcile()).appended == 1  # `started`, as if nothing had been said yet
    go.touch()
    await file_appears(last)

    async def rebuilt() -> bool:
        return (await own_mill.fold(job_id)).text == "ab"

    await eventually(rebuilt)
    await own_mill.reconciler.reconcile()
    assert (await own_mill.fold(job_id)).text == "ab"
    end.touch()
    await looking
    assert (await own_mill.fold(job_id)).text == "ab"


async def test_a_log_flushed_after_the_last_token_has_its_end_and_the_whole_answer(
    own_mill: Mill, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await own_mill.accept(script("a", ("touch", str(begun)), ("until", str(go))))
    looking = own_mill.looking()
    await file_appears(begun)

    async def shown() -> bool:
        return (await own_mill.fold(job_id)).text == "a"

    await eventually(shown)
    await own_mill.redis.flushall()
    go.touch()
    await looking
    assert (await own_mill.kinds(job_id)) == ["final"]
    assert (await own_mill.fold(job_id)).text == "a"


async def test_a_redis_without_room_holds_up_no_answer(own_valkey: Valkey, own_mill: Mill, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    job_id = await own_mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
    looking = own_mill.looking()
    await file_appears(begun)
    await own_mill.redis.config_set("maxmemory", "1")
    go.touch()
    async with asyncio.timeout(10):
        await looking
    assert await own_mill.status(job_id) == "finished"
    second = await own_mill.answer(script("accepted all the same"))
    assert await own_mill.status(second) == "finished"
    await own_mill.redis.config_set("maxmemory", "0")
    assert (await caught_up(own_mill, job_id))[-1] == "final"
    assert (await caught_up(own_mill, second))[-1] == "final"
