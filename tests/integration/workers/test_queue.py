"""The queue takes whatever is put on it: jobs are answered or refused where it can be seen, nothing blocks the rest."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic import SecretStr

from cli.valkey import Valkey
from schemas.errors import ConfigurationError, StorageUnavailable
from schemas.ids import new_id
from schemas.settings import Settings
from storage.tables import jobs, quarantine
from tests.integration.workers.in_process import in_process_worker
from tests.integration.workers.mill import Mill, eventually, file_appears
from tests.integration.workers.raw_redis import RawRedis
from tests.integration.workers.scripted import script
from workers import reconciler
from workers.app import make_broker
from workers.broker import ChatBroker
from workers.process import WorkerProcess


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "RING_PATIENCE_S", 0.0)
    monkeypatch.setattr(reconciler, "PATIENCE_S", 0.0)


@pytest_asyncio.fixture
async def mill(redis_url: str, sqlite_url: str, namespace: str) -> AsyncIterator[Mill]:
    """Looks on from beside the worker."""
    async with Mill(redis_url, sqlite_url, namespace, threads=4) as mill:
        yield mill


@pytest_asyncio.fixture
async def worker(mill: Mill) -> AsyncIterator[ChatBroker]:
    async with in_process_worker(mill.settings) as broker:
        yield broker


@pytest.fixture
def raw(redis_url: str) -> Iterator[RawRedis]:
    with RawRedis(redis_url) as raw:
        yield raw


async def is_quiet(mill: Mill, queue: str = "chat") -> bool:
    """Whether every message of the queue has been acknowledged."""
    key = f"{mill.settings.namespace}:{queue}"
    if await mill.redis.exists(key, f"{key}.msgs"):
        return False
    acks = [name async for name in mill.redis.scan_iter(f"{mill.settings.namespace}:__acks__.*.{queue}")]
    return not acks


async def quiet(mill: Mill) -> None:
    await eventually(lambda: is_quiet(mill))


async def signs_of_life(mill: Mill, count: int) -> None:
    """Wait until the worker's consumer has shown that it lives this many times more."""
    for _ in range(count):
        before = await _last_sign(mill)

        async def another(before: float = before) -> bool:
            return await _last_sign(mill) > before

        await eventually(another)


async def _last_sign(mill: Mill) -> float:
    signs: Any = await mill.redis.zrange(f"{mill.settings.namespace}:__heartbeats__", 0, -1, withscores=True)
    return max((float(score) for _, score in signs), default=0.0)


async def knows(mill: Mill, job_id: str) -> dict[str, Any]:
    """The job's row, once it is accepted and has ended."""

    async def look() -> bool:
        return bool(await mill.rows(jobs, id=job_id))

    await eventually(look)
    return await mill.ended(job_id)


async def quarantined(mill: Mill, count: int = 1) -> list[dict[str, Any]]:
    async def look() -> list[dict[str, Any]] | None:
        rows = await mill.rows(quarantine)
        return rows if len(rows) >= count else None

    found = await eventually(look)
    assert found is not None
    return found


async def test_a_ring_answers_what_is_due_and_is_acknowledged(mill: Mill, worker: ChatBroker) -> None:
    job_id = await mill.accept(script("a"))
    await mill.ended(job_id)
    await quiet(mill)
    assert (await mill.fold(job_id)).text == "a"


async def test_a_job_from_a_bare_socket_is_accepted_answered_and_acknowledged(
    mill: Mill, worker: ChatBroker, raw: RawRedis
) -> None:
    job_id = new_id()
    raw.send(mill.settings.namespace, {"job_id": job_id, "message": script("hello"), "metadata": {"from": "a socket"}})
    job = await knows(mill, job_id)
    assert job["status"] == "finished"
    assert job["body"]["metadata"] == {"from": "a socket"}
    assert await mill.kinds(job_id) == ["queued", "started", "text", "final"]
    await quiet(mill)


async def test_a_job_sent_twice_is_answered_once(mill: Mill, worker: ChatBroker, raw: RawRedis) -> None:
    job = {"job_id": new_id(), "message": script("hello")}
    raw.send(mill.settings.namespace, job)
    raw.send(mill.settings.namespace, job)
    await knows(mill, job["job_id"])
    raw.send(mill.settings.namespace, job)
    await quiet(mill)
    assert await mill.transitions(job["job_id"]) == ["accept", "claim", "finish"]


async def test_a_job_without_an_id_is_answered_once_even_if_its_message_comes_again(
    mill: Mill, worker: ChatBroker, raw: RawRedis
) -> None:
    message = json.dumps(
        {
            "queue_name": "chat",
            "actor_name": "chat",
            "args": [{"message": script("hello")}],
            "kwargs": {},
            "options": {"redis_message_id": "m"},
            "message_id": "m",
            "message_timestamp": 1,
        }
    )
    for _ in range(2):
        # As one whose worker died, or lost touch with Redis, before it had acknowledged it.
        raw.enqueue(mill.settings.namespace, "chat", "m", message.encode())
        await eventually(lambda: _has_jobs(mill))
        await quiet(mill)
    (row,) = await mill.rows(jobs)
    assert row["status"] == "finished"


async def _has_jobs(mill: Mill) -> bool:
    return bool(await mill.rows(jobs))


async def test_two_jobs_without_an_id_are_two_jobs(mill: Mill, worker: ChatBroker, raw: RawRedis) -> None:
    for _ in range(2):
        raw.send(mill.settings.namespace, {"message": script("hello")})

    async def both() -> bool:
        return [row["status"] for row in await mill.rows(jobs)] == ["finished"] * 2

    await eventually(both)


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"message": ""}, "invalid", "message"),
        ({"message": "x", "surprise": 1}, "invalid", "surprise"),
        ({"message": "x", "messages": [{"role": "user", "content": "x"}]}, "invalid", "messages"),
        ({"message": 5}, "invalid", "message"),
        ({"message": "x", "priority": "high"}, "invalid", "priority"),
        ({"message": "x", "session_id": "01890000-0000-7000-8000-00000000dead"}, "not_found", "session_id"),
        ({"message": "x", "model": "unheard-of"}, "invalid", "model"),
        ({"message": "x", "agent_framework": "unheard-of"}, "invalid", "agent_framework"),
        ({"message": "x", "agent_framework": "none"}, "invalid", "agent_framework"),
        ({"message": "x", "tools": ["unheard-of"]}, "invalid", "tools"),
        ({"message": "x", "images": ["data:"]}, "not_yet", "images"),
        ({"message": "x", "metadata": {"n": float("nan")}}, "malformed", ""),
        ({"message": "x" * (300 * 1024)}, "invalid", "message"),
        ({"message": "x", "metadata": {"big": "x" * (9 * 1024 * 1024)}}, "too_large", ""),
        ({"message": "x", "tenant": "no such/tenant"}, "invalid", "tenant"),
        ({}, "invalid", ""),
    ],
)
async def test_an_invalid_job_with_an_id_is_a_dead_letter_whoever_follows_it_sees(
    mill: Mill, worker: ChatBroker, raw: RawRedis, fields: dict[str, Any], code: str, reason: str
) -> None:
    job_id = new_id()
    raw.send(mill.settings.namespace, {"job_id": job_id, "queue": "chat", **fields})

    async def refused() -> bool:
        return (await mill.kinds(job_id)) == ["queued", "failed"]

    await eventually(refused)
    (letter,) = await mill.dead_letters(job_id)
    assert letter["error"]["code"] == code
    assert reason in letter["error"]["message"]
    assert not letter["error"]["retryable"]
    await quiet(mill)


@pytest.mark.parametrize(
    "arguments",
    [
        {"args": []},
        {"args": [None]},
        {"args": ["text"]},
        {"args": [5]},
        {"args": [[]]},
        {"args": "text"},
        {"args": [{"message": ""}]},
        {"args": [{"job_id": "no uuid", "message": "x"}]},
        {"args": [{"job_id": 5, "message": "x"}]},
        {"args": [{"message": "x", "job_id": None}]},
        {"args": [{}, {}]},
        {"args": [{"message": "x"}], "kwargs": {"more": 1}},
        {"args": [], "kwargs": {"message": "x"}},
        {"args": [{"message": "x", "surprise": "\ud800\x00"}]},
    ],
)
async def test_a_job_nobody_could_ask_for_is_kept_in_quarantine_with_its_bytes(
    mill: Mill, worker: ChatBroker, raw: RawRedis, arguments: dict[str, Any]
) -> None:
    raw.send(mill.settings.namespace, {}, **arguments)
    (row,) = await quarantined(mill)
    sent = list(arguments["args"])
    assert json.loads(row["payload"]) == ([sent, arguments["kwargs"]] if "kwargs" in arguments else sent)
    assert row["reason"]
    await quiet(mill)
    assert await mill.rows(jobs) == []


UNREADABLE: dict[str, bytes] = {
    "no JSON": b"\xff\x00 not json",
    "empty": b"",
    "a list": b"[1, 2]",
    "a number": b"7",
    "no fields": b"{}",
    "unknown fields": b'{"queue_name": "chat", "actor_name": "chat", "args": [], "kwargs": {}, "options": {}, "x": 1}',
    "args a number": b'{"queue_name": "chat", "actor_name": "chat", "args": 5, "kwargs": {}, "options": {}}',
    "options a list": b'{"queue_name": "chat", "actor_name": "chat", "args": [], "kwargs": {}, "options": []}',
    "kwargs null": b'{"queue_name": "chat", "actor_name": "chat", "args": [], "kwargs": null, "options": {}}',
    "actor a number": b'{"queue_name": "q", "actor_name": 5, "args": [], "kwargs": {}, "options": {}}',
    "id number": b'{"queue_name": "q", "actor_name": "chat", "args": [], "kwargs": {}, "options": {}, "message_id": 1}',
    "too deep": b"[" * 100_000,
    "an unknown actor": b'{"queue_name": "chat", "actor_name": "gone", "args": [], "kwargs": {}, "options": {}}',
    "a pickle": b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_message_nobody_can_read_is_kept_and_the_good_ones_beside_it_run_at_once(
    mill: Mill, worker: ChatBroker, raw: RawRedis, name: str
) -> None:
    namespace, good = mill.settings.namespace, [new_id(), new_id()]
    raw.send(namespace, {"job_id": good[0], "message": script("a")})
    raw.enqueue(namespace, "chat", new_id(), UNREADABLE[name])
    raw.send(namespace, {"job_id": good[1], "message": script("b")})
    for job_id in good:
        assert (await knows(mill, job_id))["status"] == "finished"
    (row,) = await quarantined(mill)
    assert row["payload"] == UNREADABLE[name]
    await quiet(mill)


@pytest.mark.parametrize(
    "fields",
    [
        {"options": {}},
        {"options": {"redis_message_id": ["no", "text"]}},
        {"options": {"redis_message_id": None}},
        {"options": {"redis_message_id": "another's"}},
        {"options": {"eta": 4_000_000_000_000}},
        {"options": {"eta": "tomorrow"}},
        {"options": {"throws": "x", "pipe_target": {"a": 1}, "max_retries": "x"}},
        {"queue_name": "another"},
        {"queue_name": ["no", "text"]},
        {"queue_name": None},
        {"message_timestamp": "yesterday"},
        {"message_id": ""},
    ],
)
async def test_what_a_foreign_message_says_beside_its_argument_does_no_harm(
    mill: Mill, worker: ChatBroker, raw: RawRedis, fields: dict[str, Any]
) -> None:
    odd = [{"job_id": new_id(), "message": script(str(place))} for place in range(6)]  # more than there are threads
    for job in odd:
        raw.send(mill.settings.namespace, job, **fields)
    good = {"job_id": new_id(), "message": script("good")}
    raw.send(mill.settings.namespace, good)
    for job in (*odd, good):
        assert (await knows(mill, str(job["job_id"])))["status"] == "finished"
    await quiet(mill)


async def test_two_messages_of_the_same_bytes_and_no_id_are_both_acknowledged(
    mill: Mill, worker: ChatBroker, raw: RawRedis, tmp_path: Path
) -> None:
    job = {"job_id": new_id(), "message": script("a")}
    message = json.dumps(
        {"queue_name": "chat", "actor_name": "chat", "args": [job], "kwargs": {}, "options": {}, "message_id": "same"}
    ).encode()
    # Both are fetched together: every thread but one is busy, so that they wait.
    for _ in range(3):
        raw.enqueue(mill.settings.namespace, "chat", new_id(), message)
    assert (await knows(mill, job["job_id"]))["status"] == "finished"
    await quiet(mill)


async def test_a_ring_whose_message_is_gone_blocks_nobody(mill: Mill, worker: ChatBroker, raw: RawRedis) -> None:
    raw.command("RPUSH", f"{mill.settings.namespace}:chat", "no such message")
    job_id = await mill.accept(script("a"))
    await mill.ended(job_id)


async def test_foreign_tenants_jobs_cannot_be_taken_over_by_their_id(
    mill: Mill, worker: ChatBroker, raw: RawRedis
) -> None:
    job = {"job_id": new_id(), "message": script("mine"), "tenant": "a"}
    raw.send(mill.settings.namespace, job)
    await quiet(mill)
    raw.send(mill.settings.namespace, {**job, "tenant": "b"})
    raw.send(mill.settings.namespace, {**job, "message": script("other words")})
    await quiet(mill)
    (row,) = await mill.rows(jobs)
    assert (row["tenant"], row["status"]) == ("a", "finished")
    assert (await mill.fold(str(job["job_id"]))).text == "mine"


async def test_messages_wait_for_a_worker_that_is_full_and_all_are_answered(
    mill: Mill, worker: ChatBroker, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    waiting = [await mill.accept(script(("touch", str(tmp_path / str(n))), ("until", str(go)))) for n in range(4)]
    for place in range(4):
        await file_appears(tmp_path / str(place))
    more = [await mill.accept(script("b")) for _ in range(8)]
    go.touch()
    for job_id in (*waiting, *more):
        assert (await mill.ended(job_id))["status"] == "finished"
    await quiet(mill)


async def test_a_worker_whose_threads_are_all_busy_still_shows_that_it_lives(
    mill: Mill, worker: ChatBroker, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    full = [await mill.accept(script(("touch", str(tmp_path / str(n))), ("until", str(go)))) for n in range(4)]
    for place in range(4):
        await file_appears(tmp_path / str(place))
    await signs_of_life(mill, 3)
    go.touch()
    for job_id in full:
        await mill.ended(job_id)


async def test_an_unexpected_failure_keeps_a_raw_producers_message(
    mill: Mill, worker: ChatBroker, raw: RawRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*arguments: Any) -> Any:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr("workers.producer.accept", breaks)
    job = {"job_id": new_id(), "message": script("kept")}
    raw.send(mill.settings.namespace, job)
    (row,) = await quarantined(mill)
    assert json.loads(row["payload"]) == [job]
    await quiet(mill)


async def test_a_worker_survives_a_redis_restarted_without_its_data(
    own_valkey: Valkey, sqlite_url: str, namespace: str, tmp_path: Path
) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    async with Mill(own_valkey.url, sqlite_url, namespace, threads=4) as mill, in_process_worker(mill.settings):
        running = await mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
        await file_appears(begun)
        await own_valkey.kill()
        queued = await mill.accept(script("accepted in the dark"))
        for file in own_valkey.folder.glob("appendonlydir/*"):
            file.unlink()
        await own_valkey.start()
        go.touch()
        assert (await mill.ended(running))["status"] == "finished"
        assert (await mill.ended(queued))["status"] == "finished"
        later = await mill.accept(script("c"))
        assert (await mill.ended(later))["status"] == "finished"

        async def all_told() -> bool:
            return [(await mill.fold(job_id)).text for job_id in (running, queued, later)] == [
                "ab", "accepted in the dark", "c",
            ]  # fmt: skip

        await eventually(all_told)
        await quiet(mill)


async def test_a_redis_without_room_delays_jobs_and_loses_none(
    own_valkey: Valkey, sqlite_url: str, namespace: str
) -> None:
    async with Mill(own_valkey.url, sqlite_url, namespace, threads=2) as mill, in_process_worker(mill.settings):
        await mill.redis.config_set("maxmemory", "1")
        job_id = await mill.accept(script("a"))
        assert await mill.redis.llen(f"{namespace}:chat") == 0
        await mill.redis.config_set("maxmemory", "0")
        assert (await mill.ended(job_id))["status"] == "finished"
        await quiet(mill)


@pytest.mark.parametrize("message", ["no JSON", "an unknown actor"])
async def test_an_unreadable_message_waits_until_sql_can_keep_it(
    mill: Mill, worker: ChatBroker, raw: RawRedis, message: str
) -> None:
    keep = worker.keeper
    assert keep is not None
    failures = iter([StorageUnavailable("the database does not answer")] * 3)

    def keep_later(*arguments: Any) -> None:
        for failure in failures:
            raise failure
        keep(*arguments)

    worker.keeper = keep_later
    raw.enqueue(mill.settings.namespace, "chat", new_id(), UNREADABLE[message])
    good = {"job_id": new_id(), "message": script("good")}
    raw.send(mill.settings.namespace, good)
    assert (await knows(mill, good["job_id"]))["status"] == "finished"
    (row,) = await quarantined(mill)
    assert row["payload"] == UNREADABLE[message]
    await quiet(mill)


async def test_a_worker_started_while_redis_and_sql_are_away_works_once_they_are_back(
    own_valkey: Valkey, sqlite_url: str, namespace: str
) -> None:
    await own_valkey.kill()
    async with Mill(own_valkey.url, sqlite_url, namespace, threads=2) as mill, in_process_worker(mill.settings):
        job_id = await mill.accept(script("a"))
        await own_valkey.start()
        assert (await mill.ended(job_id))["status"] == "finished"


def test_an_address_that_is_none_is_said_at_start() -> None:
    with pytest.raises(ConfigurationError, match="REDIS_URL"):
        make_broker(Settings(redis_url=SecretStr("nonsense")))


async def test_a_closing_worker_leaves_the_rings_to_others(mill: Mill, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    broker: ChatBroker
    async with in_process_worker(mill.settings) as broker:
        job_id = await mill.accept(script("a", ("touch", str(begun)), ("until", str(go))))
        await file_appears(begun)
        (process,) = [one for one in broker.middleware if isinstance(one, WorkerProcess)]
        process._begin_shutdown(broker)
        for _ in range(3):
            await mill.accept(script("b"))
        await signs_of_life(mill, 3)
        assert await mill.redis.llen(f"{mill.settings.namespace}:chat") == 3
        go.touch()
        await mill.ended(job_id)
    assert await mill.redis.llen(f"{mill.settings.namespace}:chat") == 3
