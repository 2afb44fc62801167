"""Random walks over everything that can happen to a log while an attempt shows text.

After every acknowledged append the log is compared with what was shown: the terminal event's whole answer would hide
a fault of the log.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import orjson
import pytest

from schemas.errors import TransitionRefused
from schemas.stream_event import ToolNote
from storage.event_log import Append, Batch
from storage.jobs.statements import Recorded
from tests.unit.workers.claims import opening, recorded
from tests.unit.workers.fakes import LOST_AFTER, LOST_BEFORE, OK, FakeDatabase, FakeLog
from workers import event_writer
from workers.event_writer import EventWriter
from workers.job_stream import JobStream

WALKS = 300
STEPS = 40


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "RETRY_S", (0.0,))
    monkeypatch.setattr(event_writer, "SQL_RETRY_S", 0.0)


class Job:
    """One attempt: what it has shown, and what SQL says of it."""

    def __init__(self, writer: EventWriter) -> None:
        self.started = opening()
        self.id = self.started.job_id
        self.transitions: dict[int, Recorded] = {1: self.started}
        self.lost = False
        self.shown: list[str] = []
        self.stream = writer.open(self.started, self._lose)

    @property
    def epoch(self) -> int:
        return max(self.transitions)

    @property
    def text(self) -> str:
        return "".join(self.shown)

    def show(self, piece: str) -> None:
        self.shown.append(piece)
        self.stream.add_text(piece)

    def _lose(self) -> None:
        assert not self.lost, "told twice"
        self.lost = True


class Walk:
    """A few jobs of one writer, and a world that does to them what the seed says."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self.log = FakeLog(iter(self._fault, "never"))
        self.log.after_append = self._compare
        self.log.pause = self._pause
        self.database = FakeDatabase(self._rebuild, self._transition, faults=iter(self._fault, "never"))
        self.writer = EventWriter(self.database, self.log.log)
        self.jobs = {job.id: job for job in (Job(self.writer) for _ in range(3))}
        self.calm = False
        #: What was seen inside the writer's own task, where nobody would hear an assertion.
        self.wrong: list[str] = []

    async def run(self) -> None:
        self.writer.start()
        for _ in range(STEPS):
            self._step(self.random.choice(list(self.jobs.values())))
            await self._pause()
            assert not self.wrong
        self.calm = True
        for job in self.jobs.values():
            async with asyncio.timeout(10):
                await job.stream.drain()
            epoch = await self.writer.seal(job.stream, 10)
            if not job.lost and not self._is_taken(job):
                assert epoch == job.epoch
                self._finish(job)
        await self.writer.close()
        assert not self.wrong

    def _step(self, job: Job) -> None:
        match self.random.choices(("text", "tool", "flush", "roll back", "take", "repeat"), (60, 10, 4, 4, 1, 4))[0]:
            case "text":
                job.show(f"<{len(job.shown)}>")
            case "tool":
                job.stream.add_tool(ToolNote(id=str(len(job.shown)), name="clock", status="started"))
            case "flush":
                self.happened["flush"] += 1
                self.log.flush()
            case "roll back":
                # What a failover to a replica that lags behind does.
                entries = self.log.entries.get(job.id, [])
                if entries:
                    self.happened["roll back"] += 1
                    del entries[self.random.randrange(len(entries)) :]
            case "take" if not job.lost:
                self.happened["taken by another worker"] += 1
                epoch = job.epoch + 1
                taken = recorded("expire", epoch, "retrying", job_id=job.id)
                job.transitions[epoch] = taken
                self.log._append(Batch(job.id, epoch, 0, (taken.event,)))
            case "repeat":
                # A reconciler appends the newest transition's event again, unless it is a rebuild's.
                newest = job.transitions[job.epoch]
                if newest.kind != "rebuild":
                    self.log._append(Batch(job.id, newest.epoch, 0, (newest.event,)))

    def _fault(self) -> str:
        if self.calm:
            return OK
        fault = self.random.choices((OK, LOST_BEFORE, LOST_AFTER), (8, 1, 1))[0]
        self.happened[fault] += 1
        return fault

    async def _pause(self) -> None:
        for _ in range(self.random.randrange(3)):
            await asyncio.sleep(0)

    def _rebuild(self, function: Any, job_id: str, epoch: int, text: str, tools: list[ToolNote]) -> Recorded:
        job = self.jobs[job_id]
        if job.epoch != epoch:
            raise TransitionRefused(job_id)
        assert job.text.startswith(text), "the snapshot says something else than was shown"
        self.happened["rebuild"] += 1
        made = recorded("rebuild", epoch + 1, "snapshot", job_id=job_id, text=text, tools=tools)
        job.transitions[epoch + 1] = made
        return made

    def _transition(self, job_id: str, epoch: int) -> Recorded | None:
        return self.jobs[job_id].transitions.get(epoch)

    def _is_taken(self, job: Job) -> bool:
        return job.transitions[job.epoch].kind == "expire"

    def _compare(self, batch: Batch, result: Append) -> None:
        """After an append: a fold of the log is a beginning of what was shown."""
        job = self.jobs[batch.job_id]
        entries = self.log.entries.get(batch.job_id, [])
        ids = [event_id for event_id, _ in entries]
        if ids != sorted(set(ids)):
            self.wrong.append(f"ids out of order: {ids}")
        if result is Append.FENCED:
            self.happened["fenced"] += 1
            if job.epoch <= batch.epoch:
                self.wrong.append("fenced though it holds the job")
        if result is Append.OK and batch.epoch == job.epoch and not self._is_taken(job):
            fold = self.log.fold(batch.job_id)
            if not job.text.startswith(fold.text):
                self.wrong.append(f"{fold.text!r} is no beginning of {job.text!r}")

    def _finish(self, job: Job) -> None:
        fold = self.log.fold(job.id)
        if fold.last_id.epoch == job.epoch and fold.last_id.seq == job.stream._base:
            # Nothing was lost after the last acknowledgement: the reader has seen every character.
            self.happened["whole"] += 1
            assert fold.text == job.text
        else:
            self.happened["end of the log lost"] += 1


async def test_whatever_happens_a_reader_has_seen_exactly_what_was_shown() -> None:
    happened: Counter[str] = Counter()
    for seed in range(WALKS):
        walk = Walk(seed)
        try:
            await walk.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        happened += walk.happened
    for what in (
        OK, LOST_BEFORE, LOST_AFTER, "flush", "roll back", "taken by another worker", "rebuild", "fenced", "whole",
        "end of the log lost",
    ):  # fmt: skip
        assert happened[what] > 20, f"the walks hardly met: {what} ({happened})"


def test_a_stream_that_joined_a_batch_of_unknown_fate_with_later_text_would_be_found_out() -> None:
    """The walk can fail: this is the fault it is there for."""

    class Joining(JobStream):
        def next_batch(self) -> Batch | None:
            waiting = self._pending[0] if self._pending else None
            if self.sent is not None and isinstance(waiting, str) and b'"text":"' in self.sent.events[-1]:
                self._pending.popleft()
                joined = orjson.loads(self.sent.events[-1])["text"] + waiting
                events = (*self.sent.events[:-1], self._encode(joined))
                self.sent = Batch(self.job_id, self.epoch, self.sent.base, events)
            return super().next_batch()

    async def walk_with_the_fault() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(event_writer, "JobStream", Joining)
            for seed in range(WALKS):
                await Walk(seed).run()

    with pytest.raises(AssertionError):
        asyncio.run(walk_with_the_fault())
