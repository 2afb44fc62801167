"""A seeded random walk over one job's event log: a writer, zombies, a reconciler, a client, and a Redis that forgets.

SQL is played by a list of transitions. The writer is the worker's own JobStream. After each acknowledged write the log
must say exactly what the writer has shown: the terminal event would hide what went wrong before it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import orjson
from redis.asyncio.client import PubSub

from schemas.fold import BEFORE_ALL, Fold
from schemas.ids import new_id
from schemas.job_event import EventId, encode_event
from storage.event_log import Append, Batch, EventLog, parse_published
from storage.jobs.statements import Recorded
from workers.job_stream import JobStream


class BrokenLog(AssertionError):
    """The log, or what a client made of it, is not what the writer said."""


def require(holds: object, rule: str, *facts: object) -> None:
    if not holds:
        raise BrokenLog(f"{rule}: {', '.join(map(repr, facts))}")


class Client:
    """Follows the log as the gateway does: live while each event names the one it has seen last, else from the log."""

    def __init__(self, log: EventLog, job_id: str, pubsub: PubSub) -> None:
        self.log, self.job_id, self.pubsub = log, job_id, pubsub
        self.fold = Fold()
        self.holes = 0

    async def listen(self, until: EventId | None = None) -> None:
        """Take what was published so far, or wait for an event; a hole is filled from the log."""
        while until is None or self.fold.last_id < until:
            message = await self.pubsub.get_message(timeout=0.0 if until is None else 2)
            if message is None:
                return
            if message["type"] != "message" or message["channel"].decode() != self.log.key(self.job_id):
                continue
            published = parse_published(message["data"])
            if published.id <= self.fold.last_id:
                continue
            if published.previous != (EventId(0, 0) if self.fold.last_id == BEFORE_ALL else self.fold.last_id):
                self.holes += 1
                await self.read()
            self.fold.apply(published.id, orjson.loads(published.event))

    async def read(self) -> None:
        """Read the log from the cursor on, as on every reconnection."""
        cursor = None if self.fold.last_id == BEFORE_ALL else self.fold.last_id
        for entry in await self.log.read(self.job_id, cursor):
            self.fold.apply(entry.id, orjson.loads(entry.event))


class LogWalk:
    """`steps` names each step with its weight."""

    steps: ClassVar[dict[str, int]] = {
        "speak": 30,
        "send": 40,
        "let_a_zombie_send": 8,
        "reconcile": 8,
        "forget_everything": 2,
        "keep_a_copy": 4,
        "fall_back_to_a_copy": 4,
        "take_over": 3,
        "end_the_attempt": 5,
        "go_on": 12,
        "follow": 10,
        "cut_the_client_off": 3,
    }

    def __init__(self, log: EventLog, pubsub: PubSub, seed: int) -> None:
        self.log, self.redis, self.pubsub = log, log.redis, pubsub
        self.rng = random.Random(seed)
        self.seen: Counter[str] = Counter()

    async def run(self, steps: int, meet: Sequence[str] = ()) -> None:
        """Raises BrokenLog at the first step after which something is wrong, and for a path that was never met."""
        await self._new_job()
        names, weights = list(self.steps), list(self.steps.values())
        for number in range(steps):
            (name,) = self.rng.choices(names, weights)
            try:
                await getattr(self, name)()
            except AssertionError as error:
                error.add_note(f"in step {number}: {name}")
                raise
        missed = [path for path in meet if not self.seen[path]]
        require(not missed, "every rare path is met", missed, self.seen)

    async def _new_job(self) -> None:
        self.job_id = new_id()
        self.stream: JobStream | None = None
        self.zombies: list[JobStream] = []
        self.copies: list[bytes] = []
        #: What SQL knows: the transition of each epoch, in order.
        self.history: list[Recorded] = []
        #: What the newest transition's event makes of the text.
        self.response = ""
        #: What the writer had shown when each batch was made.
        self.shown: dict[Batch, str] = {}
        self.opening_text = ""
        #: Whether the log may have lost something since the writer heard of it last.
        self.damaged = False
        #: Whether the client has missed nothing, and the log has everything that it has heard.
        self.in_touch = True
        await self.pubsub.subscribe(self.log.key(self.job_id))
        self.client = Client(self.log, self.job_id, self.pubsub)
        self._transition("accept", "queued")
        self.seen["jobs"] += 1

    def _transition(self, kind: str, event_kind: str, **fields: Any) -> Recorded:
        epoch = len(self.history)
        event = encode_event(event_kind, self.job_id, 1, **fields)
        self.history.append(Recorded(self.job_id, epoch, kind, event))
        return self.history[-1]

    # The writer

    async def speak(self) -> None:
        if self.stream is not None:
            self.stream.add_text(f"{self.rng.randrange(1000)} ")
            if self.rng.random() < 0.2:
                self.stream.add_tool({"id": "c", "name": "t", "status": "started"})

    async def send(self) -> None:
        stream = self.stream
        batch = stream.next_batch() if stream is not None else None
        if stream is None or batch is None:
            return
        repeated = batch in self.shown
        # Everything that waited is in the batch, but for an opening, which travels alone.
        self.shown.setdefault(batch, stream.text if batch.base else self.opening_text)
        fate = self.rng.choices(("answered", "reply lost", "request lost"), (80, 12, 8))[0]
        self.seen[fate] += 1
        if fate == "request lost":
            return
        answer = await self.log.append(batch)
        if fate == "reply lost":
            return
        self.seen[f"writer {answer.value}"] += 1
        self.seen["repeat acknowledged"] += repeated and answer is Append.OK
        require(answer in (Append.OK, Append.LOST), "who holds the job is not fenced off", answer, batch)
        if answer is Append.OK:
            stream.acknowledge(batch)
            self.damaged = False
            await self._check(self.shown[batch])
        else:
            require(self.damaged, "nothing is lost unless something was forgotten", batch)
            await self._rebuild(stream)

    async def _rebuild(self, stream: JobStream) -> None:
        text, tools = stream.snapshot()
        rebuilt = self._transition("rebuild", "snapshot", text=text, tools=tools)
        self.opening_text = text
        if self.rng.random() < 0.5:
            await self.speak()  # meanwhile
        stream.reopen(rebuilt)
        self.seen["rebuilt"] += 1

    async def _check(self, text: str) -> None:
        """The writer has just heard that the log has everything up to `text`."""
        entries = await self.log.read(self.job_id, count=100_000)
        fold = Fold()
        for entry in entries:
            require(fold.terminal is None or entry.id.epoch > fold.last_id.epoch, "nothing follows an end", entries)
            fold.apply(entry.id, orjson.loads(entry.event))
        require(fold.text == text, "the log says what the writer said", fold.text, text)
        if self.rng.random() < 0.3:
            await self.client.listen()
            await self.client.read()
            self.in_touch = True
            require(self.client.fold.text == text, "a client shows what the writer said", self.client.fold.text, text)
            self.seen["client compared"] += 1

    async def let_a_zombie_send(self) -> None:
        """A writer that lost the job and does not know it yet."""
        if not self.zombies:
            return
        zombie = self.rng.choice(self.zombies)
        zombie.add_text("from the grave ")
        batch = zombie.next_batch()
        require(batch is not None, "a zombie has something to say", zombie)
        answer = await self.log.append(batch) if batch is not None else Append.ENDED
        self.seen[f"zombie {answer.value}"] += 1
        if batch is not None and answer is Append.OK:
            zombie.acknowledge(batch)
        else:
            self.zombies.remove(zombie)  # fenced off; or it wants to rebuild, and SQL refuses

    # SQL and those who read it

    async def _append(self, recorded: Recorded) -> None:
        """Whoever made a transition appends its event, once, and may fail to."""
        if self.rng.random() < 0.75:
            answer = await self.log.append(Batch(self.job_id, recorded.epoch, 0, (recorded.event,), recorded.terminal))
            require(answer is Append.OK, "the newest transition's event is always taken", answer, recorded)

    async def reconcile(self) -> None:
        """Append the newest transition's event again, or for the first time; a rebuild's is its writer's alone."""
        recorded = self.history[-1]
        if recorded.kind == "rebuild":
            return
        answer = await self.log.append(Batch(self.job_id, recorded.epoch, 0, (recorded.event,), recorded.terminal))
        require(answer is Append.OK, "the newest transition's event is always taken", answer, recorded)
        self.seen["reconciled"] += 1
        late = self.rng.choice(self.history)
        answer = await self.log.append(Batch(self.job_id, late.epoch, 0, (late.event,), late.terminal))
        require(answer is Append.OK if late is recorded else Append.FENCED, "what is older is fenced off", answer, late)

    async def take_over(self) -> None:
        """The lease is past: the job is somebody else's, and its writer does not know."""
        if self.stream is None:
            return
        self.zombies.append(self.stream)
        self.stream = None
        self.response = ""
        await self._append(self._transition("expire", "retrying", error=None, retry_at=""))
        self.seen["taken over"] += 1

    async def end_the_attempt(self) -> None:
        if self.stream is None:
            return
        text = self.stream.text
        self.stream.close()
        self.stream = None
        said = [{"role": "assistant", "content": text}]
        kind, event_kind, fields = self.rng.choice(
            (
                ("finish", "final", {"response": said}),
                ("cancel", "cancelled", {"response": said}),
                ("fail", "failed", {"error": None}),
                ("release", "requeued", {"reason": "shutdown"}),
            )
        )
        self.response = text if "response" in fields else ""
        await self._append(self._transition(kind, event_kind, **fields))
        self.seen[kind] += 1

    async def go_on(self) -> None:
        """A waiting job is claimed; one that ended is checked, and redriven or left for a new one."""
        last = self.history[-1]
        if self.stream is not None or last.kind in ("claim", "rebuild"):
            if self.stream is None:
                await self._append(self._transition("expire", "retrying", error=None, retry_at=""))
            return
        if not last.terminal:
            self.stream = JobStream(self._transition("claim", "started", attempt=1, worker="w"), lambda _: None)
            self.opening_text = ""
            self.seen["claimed"] += 1
            return
        await self.reconcile()
        await self.client.listen()
        await self.client.read()
        require(self.client.fold.terminal is not None, "a client hears of the end", self.client.fold)
        require(self.client.fold.text == self.response, "a client ends with what was saved", self.client.fold.text)
        if self.rng.random() < 0.3:
            await self._append(self._transition("redrive", "queued", queue="chat"))
            self.seen["redriven"] += 1
        else:
            await self.pubsub.unsubscribe(self.log.key(self.job_id))
            await self._new_job()

    # Redis and the client

    async def forget_everything(self) -> None:
        self.seen["forgotten"] += await self.redis.delete(self.log.key(self.job_id))
        self.damaged, self.in_touch = True, False

    async def keep_a_copy(self) -> None:
        copy = await self.redis.dump(self.log.key(self.job_id))
        if copy is not None:
            self.copies.append(copy)

    async def fall_back_to_a_copy(self) -> None:
        """A restart that lost the last writes, or a failover to a replica that lagged."""
        if self.copies:
            place = self.rng.randrange(len(self.copies))
            await self.redis.restore(self.log.key(self.job_id), 0, self.copies[place], replace=True)
            self.seen["fell back"] += 1
            self.damaged, self.in_touch = True, False

    async def follow(self) -> None:
        before = self.client.holes
        if not self.in_touch:
            await self.client.listen()
            self.seen["hole"] += self.client.holes > before
            return
        last = await self.log.last(self.job_id)
        if last is not None:
            await self.client.listen(until=last.id)
            require(self.client.fold.last_id == last.id, "everything is published", self.client.fold.last_id, last.id)
            require(self.client.holes == before, "who missed nothing sees no hole", last)
            self.seen["followed live"] += 1

    async def cut_the_client_off(self) -> None:
        """What was published meanwhile is gone; a new connection begins with the log."""
        while await self.pubsub.get_message(timeout=0.0) is not None:
            pass
        self.in_touch = False
        if self.rng.random() < 0.5:
            await self.client.read()
        self.seen["cut off"] += 1
