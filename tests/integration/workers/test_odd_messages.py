"""Whatever is put on the queue, it blocks nothing beside it, and nothing of it is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import StorageUnavailable
from schemas.ids import new_id
from tests.integration.workers.mill import Mill
from tests.integration.workers.queue_bench import knows, quarantined, quiet
from tests.integration.workers.raw_redis import RawRedis
from tests.integration.workers.scripted import script
from workers.broker import ChatBroker

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
    lite_mill: Mill, worker: ChatBroker, raw: RawRedis, name: str
) -> None:
    namespace, good = lite_mill.settings.namespace, [new_id(), new_id()]
    raw.send(namespace, {"job_id": good[0], "message": script("a")})
    raw.enqueue(namespace, "chat", new_id(), UNREADABLE[name])
    raw.send(namespace, {"job_id": good[1], "message": script("b")})
    for job_id in good:
        assert (await knows(lite_mill, job_id))["status"] == "finished"
    (row,) = await quarantined(lite_mill)
    assert row["payload"] == UNREADABLE[name]
    await quiet(lite_mill)


@pytest.mark.parametrize("message", ["no JSON", "an unknown actor"])
async def test_an_unreadable_message_waits_until_sql_can_keep_it(
    lite_mill: Mill, worker: ChatBroker, raw: RawRedis, message: str
) -> None:
    keep = worker.keeper
    assert keep is not None
    failures = iter([StorageUnavailable("the database does not answer")] * 3)

    def keep_later(*arguments: Any) -> None:
        for failure in failures:
            raise failure
        keep(*arguments)

    worker.keeper = keep_later
    raw.enqueue(lite_mill.settings.namespace, "chat", new_id(), UNREADABLE[message])
    good = {"job_id": new_id(), "message": script("good")}
    raw.send(lite_mill.settings.namespace, good)
    assert (await knows(lite_mill, good["job_id"]))["status"] == "finished"
    (row,) = await quarantined(lite_mill)
    assert row["payload"] == UNREADABLE[message]
    await quiet(lite_mill)


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
    lite_mill: Mill, worker: ChatBroker, raw: RawRedis, fields: dict[str, Any]
) -> None:
    odd = [{"job_id": new_id(), "message": script(str(place))} for place in range(6)]  # more than there are threads
    for job in odd:
        raw.send(lite_mill.settings.namespace, job, **fields)
    good = {"job_id": new_id(), "message": script("good")}
    raw.send(lite_mill.settings.namespace, good)
    for job in (*odd, good):
        assert (await knows(lite_mill, str(job["job_id"])))["status"] == "finished"
    await quiet(lite_mill)


async def test_two_messages_of_the_same_bytes_and_no_id_are_both_acknowledged(
    lite_mill: Mill, worker: ChatBroker, raw: RawRedis, tmp_path: Path
) -> None:
    job = {"job_id": new_id(), "message": script("a")}
    message = json.dumps(
        {"queue_name": "chat", "actor_name": "chat", "args": [job], "kwargs": {}, "options": {}, "message_id": "same"}
    ).encode()
    # Both are fetched together: every thread but one is busy, so that they wait.
    for _ in range(3):
        raw.enqueue(lite_mill.settings.namespace, "chat", new_id(), message)
    assert (await knows(lite_mill, job["job_id"]))["status"] == "finished"
    await quiet(lite_mill)


async def test_a_ring_whose_message_is_gone_blocks_nobody(lite_mill: Mill, worker: ChatBroker, raw: RawRedis) -> None:
    raw.command("RPUSH", f"{lite_mill.settings.namespace}:chat", "no such message")
    job_id = await lite_mill.accept(script("a"))
    await lite_mill.ended(job_id)
