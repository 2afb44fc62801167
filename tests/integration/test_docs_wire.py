"""The code of docs/wire.md against a real Valkey: what it puts on the queue, and how it follows a log."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis
from dramatiq import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.valkey import Valkey
from schemas.chat_job import ChatJob
from schemas.ids import new_id
from schemas.job_event import EventId, encode_event
from storage.event_log import Append, Batch, EventLog
from storage.redis_client import open_redis
from tests.documents import block
from workers.ring import ACTOR_NAME

WIRE = "docs/wire.md"


def example(name: str) -> dict[str, Any]:
    defined: dict[str, Any] = {}
    exec(compile(block(WIRE, name), WIRE, "exec"), defined)
    return defined


def test_the_example_puts_a_message_on_the_queue_that_a_worker_can_read(redis_url: str, namespace: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        job_id = example("produce")["send"](client, {"message": "Hello"}, namespace, "bulk")
        assert client.lrange(f"{namespace}:bulk", 0, -1) == [job_id.encode()]
        data: Any = client.hget(f"{namespace}:bulk.msgs", job_id)
    message = Message.decode(data)
    assert (message.queue_name, message.actor_name, message.kwargs) == ("bulk", ACTOR_NAME, {})
    assert message.options["redis_message_id"] == job_id
    (argument,) = message.args
    assert ChatJob.from_request(argument).job_id == job_id
    assert ChatJob.from_request(argument).message == "Hello"


class Listening:
    """The example's `listen`, on a thread."""

    def __init__(self, url: str, job_id: str, namespace: str, last: str = "0-0") -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._client = redis.Redis.from_url(url, decode_responses=True)
        self._listen = example("listen")["listen"](self._client, job_id, namespace, last)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._client:
            self.events.extend(self._listen)

    async def end(self) -> list[str]:
        """The ids it has told, once it has come to the terminal event."""
        await asyncio.to_thread(self._thread.join, 20)
        assert not self._thread.is_alive()
        return [event_id for event_id, _ in self.events]


async def append(log: EventLog, job_id: str, epoch: int, base: int, *kinds: str) -> None:
    events = tuple(encode_event(kind, job_id, 0) for kind in kinds)
    batch = Batch(job_id, epoch, base, events, terminal=kinds[-1] == "final")
    assert await log.append(batch) is Append.OK


async def heard(log: EventLog, job_id: str) -> None:
    """Wait until somebody listens to the job."""
    async with asyncio.timeout(10):
        while True:
            ((_, listeners),) = await log.redis.pubsub_numsub(log.key(job_id))
            if listeners:
                return
            await asyncio.sleep(0.01)


@pytest.fixture
def job_id() -> str:
    return new_id()


async def test_the_example_hears_what_was_appended_before_and_after_it_came(own_valkey: Valkey, job_id: str) -> None:
    async with open_redis(own_valkey.url) as client:
        log = EventLog(client, "wire", ttl_live_s=60, ttl_ended_s=60)
        await append(log, job_id, 0, 0, "queued")
        listening = Listening(own_valkey.url, job_id, "wire")
        await heard(log, job_id)
        await append(log, job_id, 1, 0, "started")
        await append(log, job_id, 1, 1, "text", "text")
        await append(log, job_id, 2, 0, "final")
        assert await listening.end() == ["0-1", "1-1", "1-2", "1-3", "2-1"]


async def test_the_example_fills_a_hole_and_takes_nothing_twice(own_valkey: Valkey, job_id: str) -> None:
    async with open_redis(own_valkey.url) as client:
        log = EventLog(client, "wire", ttl_live_s=60, ttl_ended_s=60)
        listening = Listening(own_valkey.url, job_id, "wire", last="0-1")
        await heard(log, job_id)
        key = log.key(job_id)
        for event_id in ("0-1", "1-1", "1-2"):  # stored, but never published
            await client.xadd(key, {"e": encode_event("text", job_id, 0)}, id=event_id)
        await append(log, job_id, 1, 2, "text")
        await client.publish(key, b"1-1 0-1 " + encode_event("text", job_id, 0))  # published once more
        await append(log, job_id, 2, 0, "final")
        assert await listening.end() == ["1-1", "1-2", "1-3", "2-1"]


@settings(max_examples=50)
@given(st.tuples(st.integers(0, 99), st.integers(0, 99)), st.tuples(st.integers(0, 99), st.integers(0, 99)))
def test_the_example_compares_ids_as_chatmill_does(one: tuple[int, int], other: tuple[int, int]) -> None:
    number = example("listen")["_number"]
    ids = str(EventId(*one)), str(EventId(*other))
    assert (number(ids[0]) <= number(ids[1])) == (EventId(*one) <= EventId(*other))
