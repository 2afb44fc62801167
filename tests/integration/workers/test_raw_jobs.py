"""A producer that has nothing but Redis: its jobs are answered, or refused where it can be seen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from schemas.errors import StorageUnavailable
from schemas.ids import new_id
from storage.jobs.accept import accept
from storage.tables import jobs
from tests.integration.workers.in_process import in_process_worker
from tests.integration.workers.mill import Mill, eventually
from tests.integration.workers.queue_bench import knows, quarantined, quiet
from tests.integration.workers.raw_redis import RawRedis
from tests.integration.workers.scripted import script
from workers import chat_actor
from workers.broker import ChatBroker


async def test_a_job_from_a_bare_socket_is_accepted_answered_and_acknowledged(
    lite_mill: Mill, worker: ChatBroker, raw: RawRedis
) -> None:
    job_id = new_id()
    raw.send(
        lite_mill.settings.namespace, {"job_id": job_id, "message": script("hello"), "metadata": {"from": "a socket"}}
    )
    job = await knows(lite_mill, job_id)
    assert job["status"] == "finished"
    assert job["body"]["metadata"] == {"from": "a socket"}
    assert await lite_mill.kinds(job_id) == ["queued", "started", "text", "final"]
    await quiet(lite_mill)


async def test_a_job_sent_twice_is_answered_once(lite_mill: Mill, worker: ChatBroker, raw: RawRedis) -> None:
    job = {"job_id": new_id(), "message": script("hello")}
    raw.send(lite_mill.settings.namespace, job)
    raw.send(lite_mill.settings.namespace, job)
    await knows(lite_mill, job["job_id"])
    raw.send(lite_mill.settings.namespace, job)
    await quiet(lite_mill)
    assert await lite_mill.transitions(job["job_id"]) == ["accept", "claim", "finish"]


async def test_a_job_without_an_id_is_answered_once_even_if_its_message_comes_again(
    lite_mill: Mill, worker: ChatBroker, raw: RawRedis
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
        raw.enqueue(lite_mill.settings.namespace, "chat", "m", message.encode())
        await eventually(lambda: _has_jobs(lite_mill))
        await quiet(lite_mill)
    (row,) = await lite_mill.rows(jobs)
    assert row["status"] == "finished"


async def _has_jobs(lite_mill: Mill) -> bool:
    return bool(await lite_mill.rows(jobs))


async def test_two_jobs_without_an_id_are_two_jobs(lite_mill: Mill, worker: ChatBroker, raw: RawRedis) -> None:
    for _ in range(2):
        raw.send(lite_mill.settings.namespace, {"message": script("hello")})

    async def both() -> bool:
        return [row["status"] for row in await lite_mill.rows(jobs)] == ["finished"] * 2

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
    lite_mill: Mill, worker: ChatBroker, raw: RawRedis, fields: dict[str, Any], code: str, reason: str
) -> None:
    job_id = new_id()
    raw.send(lite_mill.settings.namespace, {"job_id": job_id, "queue": "chat", **fields})

    async def refused() -> bool:
        return (await lite_mill.kinds(job_id)) == ["queued", "failed"]

    await eventually(refused)
    (letter,) = await lite_mill.dead_letters(job_id)
    assert letter["error"]["code"] == code
    assert reason in letter["error"]["message"]
    assert not letter["error"]["retryable"]
    await quiet(lite_mill)


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
    lite_mill: Mill, worker: ChatBroker, raw: RawRedis, arguments: dict[str, Any]
) -> None:
    raw.send(lite_mill.settings.namespace, {}, **arguments)
    (row,) = await quarantined(lite_mill)
    sent = list(arguments["args"])
    assert json.loads(row["payload"]) == ([sent, arguments["kwargs"]] if "kwargs" in arguments else sent)
    assert row["reason"]
    await quiet(lite_mill)
    assert await lite_mill.rows(jobs) == []


async def test_foreign_tenants_jobs_cannot_be_taken_over_by_their_id(
    lite_mill: Mill, worker: ChatBroker, raw: RawRedis
) -> None:
    job = {"job_id": new_id(), "message": script("mine"), "tenant": "a"}
    raw.send(lite_mill.settings.namespace, job)
    await quiet(lite_mill)
    raw.send(lite_mill.settings.namespace, {**job, "tenant": "b"})
    raw.send(lite_mill.settings.namespace, {**job, "message": script("other words")})
    await quiet(lite_mill)
    (row,) = await lite_mill.rows(jobs)
    assert (row["tenant"], row["status"]) == ("a", "finished")
    assert (await lite_mill.fold(str(job["job_id"]))).text == "mine"


async def test_an_unexpected_failure_keeps_a_raw_producers_message(
    lite_mill: Mill, worker: ChatBroker, raw: RawRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*arguments: Any) -> Any:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr("workers.producer.accept", breaks)
    job = {"job_id": new_id(), "message": script("kept")}
    raw.send(lite_mill.settings.namespace, job)
    (row,) = await quarantined(lite_mill)
    assert json.loads(row["payload"]) == [job]
    await quiet(lite_mill)


async def test_a_job_from_a_bare_socket_waits_until_sql_is_back(
    lite_mill: Mill, worker: ChatBroker, raw: RawRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_actor, "SQL_RETRY_S", 0.01)
    failures = iter([StorageUnavailable("the database does not answer")] * 3)

    def accept_later(*arguments: Any) -> Any:
        for failure in failures:
            raise failure
        return accept(*arguments)

    monkeypatch.setattr("workers.producer.accept", accept_later)
    job = {"job_id": new_id(), "message": script("a")}
    raw.send(lite_mill.settings.namespace, job)
    assert (await knows(lite_mill, job["job_id"]))["status"] == "finished"
    assert next(failures, None) is None
    await quiet(lite_mill)


async def test_a_job_sql_cannot_take_before_a_shutdown_goes_back_to_the_queue(
    lite_mill: Mill, raw: RawRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_actor, "SQL_RETRY_S", 0.01)
    tried: list[str] = []

    def never(*arguments: Any) -> Any:
        tried.append("accept")
        raise StorageUnavailable("the database does not answer")

    job = {"job_id": new_id(), "message": script("a")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.producer.accept", never)
        async with in_process_worker(lite_mill.settings):
            raw.send(lite_mill.settings.namespace, job)

            async def tried_often() -> bool:
                return len(tried) > 3

            await eventually(tried_often)
    async with in_process_worker(lite_mill.settings):
        assert (await knows(lite_mill, job["job_id"]))["status"] == "finished"
        await quiet(lite_mill)
