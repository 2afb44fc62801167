"""The queue and the worker that serves it, with all of dramatiq's threads."""

from __future__ import annotations

from pathlib import Path

import pytest
from dramatiq.middleware import CurrentMessage
from pydantic import SecretStr

from cli.valkey import Valkey
from schemas.errors import ConfigurationError
from schemas.settings import Settings
from tests.integration.workers.in_process import in_process_worker
from tests.integration.workers.mill import Mill, eventually, file_appears
from tests.integration.workers.queue_bench import quiet, signs_of_life
from tests.integration.workers.scripted import script
from workers import reconciler
from workers.app import make_broker
from workers.broker import ChatBroker
from workers.event_loop import ChatEventLoop
from workers.process import WorkerProcess


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "RING_PATIENCE_S", 0.0)
    monkeypatch.setattr(reconciler, "PATIENCE_S", 0.0)


async def test_a_ring_answers_what_is_due_and_is_acknowledged(lite_mill: Mill, worker: ChatBroker) -> None:
    job_id = await lite_mill.accept(script("a"))
    await lite_mill.ended(job_id)
    await quiet(lite_mill)
    assert (await lite_mill.fold(job_id)).text == "a"


async def test_messages_wait_for_a_worker_that_is_full_and_all_are_answered(
    lite_mill: Mill, worker: ChatBroker, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    waiting = [await lite_mill.accept(script(("touch", str(tmp_path / str(n))), ("until", str(go)))) for n in range(4)]
    for place in range(4):
        await file_appears(tmp_path / str(place))
    more = [await lite_mill.accept(script("b")) for _ in range(8)]
    go.touch()
    for job_id in (*waiting, *more):
        assert (await lite_mill.ended(job_id))["status"] == "finished"
    await quiet(lite_mill)


async def test_a_worker_whose_threads_are_all_busy_still_shows_that_it_lives(
    lite_mill: Mill, worker: ChatBroker, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    full = [await lite_mill.accept(script(("touch", str(tmp_path / str(n))), ("until", str(go)))) for n in range(4)]
    for place in range(4):
        await file_appears(tmp_path / str(place))
    await signs_of_life(lite_mill, 3)
    go.touch()
    for job_id in full:
        await lite_mill.ended(job_id)


async def test_a_worker_survives_a_redis_restarted_without_its_data(
    own_valkey: Valkey, sqlite_url: str, namespace: str, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    async with (
        Mill(own_valkey.url, sqlite_url, namespace, threads=4) as lite_mill,
        in_process_worker(lite_mill.settings),
    ):
        running = await lite_mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
        await file_appears(begun)
        await own_valkey.kill()
        queued = await lite_mill.accept(script("accepted in the dark"))
        for file in own_valkey.folder.glob("appendonlydir/*"):
            file.unlink()
        await own_valkey.start()
        go.touch()
        assert (await lite_mill.ended(running))["status"] == "finished"
        assert (await lite_mill.ended(queued))["status"] == "finished"
        later = await lite_mill.accept(script("c"))
        assert (await lite_mill.ended(later))["status"] == "finished"

        async def all_told() -> bool:
            return [(await lite_mill.fold(job_id)).text for job_id in (running, queued, later)] == [
                "ab", "accepted in the dark", "c",
            ]  # fmt: skip

        await eventually(all_told)
        await quiet(lite_mill)


async def test_cut_connections_to_redis_cost_nothing(
    own_valkey: Valkey, sqlite_url: str, namespace: str, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    async with Mill(own_valkey.url, sqlite_url, namespace, threads=4) as mill, in_process_worker(mill.settings):
        running = await mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
        await file_appears(begun)
        for kind in ("normal", "pubsub"):
            await mill.redis.client_kill_filter(_type=kind)
        go.touch()
        assert (await mill.ended(running))["status"] == "finished"
        later = await mill.accept(script("c"))
        assert (await mill.ended(later))["status"] == "finished"
        await quiet(mill)
        assert [(await mill.fold(job_id)).text for job_id in (running, later)] == ["ab", "c"]


async def test_a_redis_without_room_delays_jobs_and_loses_none(
    own_valkey: Valkey, sqlite_url: str, namespace: str
) -> None:
    async with (
        Mill(own_valkey.url, sqlite_url, namespace, threads=2) as lite_mill,
        in_process_worker(lite_mill.settings),
    ):
        await lite_mill.redis.config_set("maxmemory", "1")
        job_id = await lite_mill.accept(script("a"))
        assert await lite_mill.redis.llen(f"{namespace}:chat") == 0
        await lite_mill.redis.config_set("maxmemory", "0")
        assert (await lite_mill.ended(job_id))["status"] == "finished"
        await quiet(lite_mill)


async def test_a_worker_started_while_redis_and_sql_are_away_works_once_they_are_back(
    own_valkey: Valkey, sqlite_url: str, namespace: str
) -> None:
    await own_valkey.kill()
    async with (
        Mill(own_valkey.url, sqlite_url, namespace, threads=2) as lite_mill,
        in_process_worker(lite_mill.settings),
    ):
        job_id = await lite_mill.accept(script("a"))
        await own_valkey.start()
        assert (await lite_mill.ended(job_id))["status"] == "finished"


def test_nothing_of_dramatiq_decides_about_a_job(redis_url: str) -> None:
    """Its retries, time limits and shutdown notices lose messages and count deploys as failures."""
    broker = make_broker(Settings(redis_url=SecretStr(redis_url)))
    assert [type(one) for one in broker.middleware] == [ChatEventLoop, WorkerProcess, CurrentMessage]
    assert broker.get_actor("chat").options == {}
    broker.close()


def test_an_address_that_is_none_is_said_at_start() -> None:
    with pytest.raises(ConfigurationError, match="REDIS_URL"):
        make_broker(Settings(redis_url=SecretStr("nonsense")))


async def test_a_closing_worker_leaves_the_rings_to_others(lite_mill: Mill, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    broker: ChatBroker
    # On a busy machine its reconciler would ring once more for what waits: harmless, and not what is counted here.
    async with in_process_worker(lite_mill.settings.model_copy(update={"reconcile_s": 3600.0})) as broker:
        job_id = await lite_mill.accept(script("a", ("touch", str(begun)), ("until", str(go))))
        await file_appears(begun)
        (process,) = [one for one in broker.middleware if isinstance(one, WorkerProcess)]
        process._begin_shutdown(broker)
        for _ in range(3):
            await lite_mill.accept(script("b"))
        await signs_of_life(lite_mill, 3)
        assert await lite_mill.redis.llen(f"{lite_mill.settings.namespace}:chat") == 3
        go.touch()
        await lite_mill.ended(job_id)
    assert await lite_mill.redis.llen(f"{lite_mill.settings.namespace}:chat") == 3
