"""Any order of events, faults and reconnects: every client has what was said so far, and ends with what was saved."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.event_hub import EventHub
from gateway.follower import START, Follower
from schemas.agent_message import AgentMessage, joined_text
from schemas.chat_job import ChatJob
from schemas.fold import Fold
from schemas.ids import new_id
from schemas.job_event import EventId
from storage.database import Database, open_database
from storage.event_log import EventLog
from storage.jobs.accept import accept
from storage.jobs.views import last_event
from storage.redis_client import open_redis
from tests.integration.gateway.played import PlayedAttempt, PlayedWorker, append_transition

IDLE_CHECK_S = 0.1
#: Longer than any schedule takes on a busy machine.
PATIENCE_S = 20.0
STEPS = 25
EXAMPLES = 15


class Client:
    """A client that folds what it follows, leaves and comes back."""

    def __init__(self, hub: EventHub, job_id: str) -> None:
        self.fold = Fold()
        self._hub = hub
        self._job_id = job_id
        self._told = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._follower: Follower | None = None

    def join(self) -> None:
        stack = ExitStack()
        after = max(self.fold.last_id, START)
        self._follower = stack.enter_context(self._hub.follow("default", self._job_id, after))
        self._task = asyncio.create_task(self._read(self._follower, stack))

    async def leave(self) -> None:
        assert self._follower is not None
        assert self._task is not None
        self._follower.close()
        await self._task

    async def reached(self, event_id: EventId) -> None:
        """Wait until the client has this event or a later one."""
        async with asyncio.timeout(PATIENCE_S), self._told:
            await self._told.wait_for(lambda: self.fold.last_id >= event_id)

    async def ended(self) -> None:
        """Follow to the end of the stream."""
        assert self._task is not None
        async with asyncio.timeout(PATIENCE_S):
            await self._task

    async def _read(self, follower: Follower, stack: ExitStack) -> None:
        with stack:
            while (events := await follower.next(PATIENCE_S)) is not None:
                for event_id, data in events:
                    assert self.fold.apply(event_id, orjson.loads(data)), f"{event_id} came twice"
                async with self._told:
                    self._told.notify_all()


class Schedule:
    """One job's life, its steps drawn from a seed."""

    def __init__(self, seed: int, database: Database, log: EventLog, hub: EventHub) -> None:
        self.seen: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._database = database
        self._log = log
        self._hub = hub
        self._worker = PlayedWorker(database, log)
        self._clients: list[Client] = []
        self._job_id = ""
        self._queue = f"q{new_id()[-12:]}"

    async def run(self) -> None:
        job = ChatJob(message="hello", queue=self._queue)
        accepted = await self._database.write(accept, job, "echo")
        assert accepted.recorded is not None
        self._job_id = job.job_id
        self._come()
        await append_transition(self._log, accepted.recorded)
        attempt = await self._worker.claim(self._queue, tell=self._random.random() < 0.8)
        for _ in range(STEPS):
            attempt = await self._step(attempt)
        await self._finish(attempt)

    async def _step(self, attempt: PlayedAttempt) -> PlayedAttempt:
        steps: list[tuple[int, Callable[[PlayedAttempt], Awaitable[PlayedAttempt | None]]]] = [
            (10, self._say),
            (3, self._come_or_go),
            (2, self._cut),
            (1, self._lose_log),
            (1, self._roll_back),
            (1, self._try_again),
        ]
        step = self._random.choices([step for _, step in steps], [weight for weight, _ in steps])[0]
        self.seen[step.__name__] += 1
        return await step(attempt) or attempt

    async def _say(self, attempt: PlayedAttempt) -> None:
        words = [f"{self._random.randrange(1000)} " for _ in range(self._random.randint(1, 4))]
        epoch = attempt.epoch
        await attempt.say(*words)
        self.seen["rebuild"] += attempt.epoch > epoch
        if self._random.random() < 0.5:
            # The terminal event would hide what is missing here.
            last = await self._log.last(self._job_id)
            assert last is not None
            for client in self._clients:
                await client.reached(last.id)
                assert client.fold.text == attempt.text

    async def _come_or_go(self, attempt: PlayedAttempt) -> None:
        if self._random.random() < 0.4:
            self._come()
            return
        client = self._random.choice(self._clients)
        await client.leave()
        client.join()

    async def _cut(self, attempt: PlayedAttempt) -> None:
        await self._log.redis.client_kill_filter(_type="pubsub")

    async def _lose_log(self, attempt: PlayedAttempt) -> None:
        await self._log.redis.delete(self._log.key(self._job_id))

    async def _roll_back(self, attempt: PlayedAttempt) -> None:
        """The last entries are gone, as after a server's crash."""
        entries = await self._log.read(self._job_id)
        for entry in entries[len(entries) - self._random.randint(0, 3) :]:
            await self._log.redis.xdel(self._log.key(self._job_id), str(entry.id))

    async def _try_again(self, attempt: PlayedAttempt) -> PlayedAttempt:
        tell = self._random.random() < 0.7
        if attempt.claim.failures == 0 and self._random.random() < 0.5:
            await attempt.fail(tell=tell)
        elif attempt.claim.attempt < 5:
            await attempt.release(tell=tell)
        else:
            return attempt
        return await self._worker.claim(self._queue, tell=self._random.random() < 0.8)

    async def _finish(self, attempt: PlayedAttempt) -> None:
        tell = self._random.random() < 0.5
        ending = self._random.choice(["finish", "fail", "cancel"])
        if ending == "finish":
            await attempt.finish(tell=tell)
        elif ending == "fail":
            await attempt.fail(retryable=False, tell=tell)
        else:
            await attempt.cancel("stop", tell=tell)
        self._come()
        event_id, event, terminal = await self._database.read(last_event, "default", self._job_id)
        assert terminal
        response = [AgentMessage.model_validate(message) for message in orjson.loads(event).get("response", [])]
        for client in self._clients:
            await client.ended()
            assert client.fold.last_id == event_id
            assert client.fold.terminal == orjson.loads(event)
            assert client.fold.text == joined_text(response)

    def _come(self) -> None:
        client = Client(self._hub, self._job_id)
        client.join()
        self._clients.append(client)


def test_every_schedule_ends_with_the_saved_reply(redis_url: str, database_url: str, namespace: str) -> None:
    seen: Counter[str] = Counter()

    async def run(seed: int) -> None:
        async with AsyncExitStack() as stack:
            database = open_database(database_url)
            stack.push_async_callback(database.close)
            redis = open_redis(redis_url)
            stack.push_async_callback(redis.aclose)
            log = EventLog(redis, namespace, ttl_live_s=60, ttl_ended_s=60)
            hub = await stack.enter_async_context(EventHub(log, database, idle_check_s=IDLE_CHECK_S))
            schedule = Schedule(seed, database, log, hub)
            await schedule.run()
            seen.update(schedule.seen)

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(seed=st.integers(0, 2**32))
    def walk(seed: int) -> None:
        asyncio.run(run(seed))

    walk()
    # A walk that never meets a fault proves nothing.
    assert all(
        seen[step] for step in ("_say", "_come_or_go", "_cut", "_lose_log", "_roll_back", "_try_again", "rebuild")
    )
