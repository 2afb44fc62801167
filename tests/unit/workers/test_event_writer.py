"""Whatever Redis does, the log ends with what was shown, and no job fails because of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from redis.exceptions import ResponseError

from schemas.errors import TransitionRefused
from schemas.stream_event import ToolNote
from storage.event_log import Append, Batch
from storage.jobs.statements import Recorded
from tests.unit.workers.claims import opening, recorded
from tests.unit.workers.fakes import LOST_AFTER, LOST_BEFORE, FakeDatabase, FakeLog
from workers import event_writer
from workers.event_writer import EventWriter


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_writer, "RETRY_S", (0.0,))
    monkeypatch.setattr(event_writer, "SQL_RETRY_S", 0.0)


class Rebuilds:
    """The transition `rebuild` as SQL would make it, for one job."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.made: dict[int, Recorded] = {}
        self.refuse = False

    def write(self, function: Any, job_id: str, epoch: int, text: str, tools: list[ToolNote]) -> Recorded:
        if self.refuse or epoch + 1 in self.made:
            raise TransitionRefused(job_id)
        made = recorded("rebuild", epoch + 1, "snapshot", job_id=job_id, text=text, tools=tools)
        self.made[epoch + 1] = made
        return made

    def read(self, job_id: str, epoch: int) -> Recorded | None:
        return self.made.get(epoch)


class Bench:
    """A writer with its log and database, and one open stream."""

    def __init__(self, log: FakeLog, **database: Any) -> None:
        self.opening = opening()
        self.job_id = self.opening.job_id
        self.rebuilds = Rebuilds(self.job_id)
        self.database = FakeDatabase(self.rebuilds.write, self.rebuilds.read, **database)
        self.log = log
        self.writer = EventWriter(self.database, log.log)
        self.lost = 0
        self.stream = self.writer.open(self.opening, self._lose)

    def _lose(self) -> None:
        self.lost += 1

    @property
    def shown(self) -> str:
        return self.log.fold(self.job_id).text

    async def drained(self) -> None:
        async with asyncio.timeout(5):
            await self.stream.drain()


@asynccontextmanager
async def a_bench(log: FakeLog | None = None, **database: Any) -> AsyncIterator[Bench]:
    bench = Bench(log or FakeLog(), **database)
    bench.writer.start()
    yield bench
    await bench.writer.close()


async def test_what_is_shown_reaches_the_log_in_order() -> None:
    async with a_bench() as bench:
        bench.stream.add_text("Hel")
        bench.stream.add_text("lo")
        await bench.drained()
        kinds = [orjson.loads(event)["kind"] for _, event in bench.log.entries[bench.job_id]]
        assert kinds == ["started", "text"]
        assert bench.shown == "Hello"


async def test_text_that_arrives_during_a_round_trip_is_joined_into_the_next() -> None:
    log = FakeLog()
    release = asyncio.Event()
    async with a_bench(log) as bench:
        await bench.drained()
        log.pause = release.wait
        for piece in "abc":
            bench.stream.add_text(piece)
            await asyncio.sleep(0.001)
        log.pause = lambda: asyncio.sleep(0)
        release.set()
        await bench.drained()
        assert [len(trip) for trip in log.sent] == [1, 1, 1]
        assert [orjson.loads(trip[0].events[0]).get("text") for trip in log.sent] == [None, "a", "bc"]


async def test_the_events_of_all_jobs_share_one_round_trip() -> None:
    log = FakeLog()
    async with a_bench(log) as bench:
        await bench.drained()
        others = [bench.writer.open(opening(), lambda: None) for _ in range(9)]
        for stream in others:
            await stream.drain()
        assert [len(trip) for trip in log.sent] == [1, 9]


@pytest.mark.parametrize("fault", [LOST_BEFORE, LOST_AFTER])
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_round_trip_of_unknown_fate_loses_and_repeats_nothing(fault: str, place: int) -> None:
    log = FakeLog(["ok"] * place + [fault] * 3)
    async with a_bench(log) as bench:
        for piece in ("a", "b", "c"):
            bench.stream.add_text(piece)
            await asyncio.sleep(0.002)
        await bench.drained()
        assert bench.shown == "abc"
        assert bench.lost == 0


async def test_an_error_of_one_log_does_not_keep_the_others_from_being_written() -> None:
    log = FakeLog()
    decide = log._append

    def refuse_one(batch: Batch) -> Any:
        return ResponseError("WRONGTYPE") if batch.job_id == broken.job_id else decide(batch)

    async with a_bench(log) as bench:
        await bench.drained()
        broken = bench.stream
        log._append = refuse_one  # type: ignore[method-assign]
        good = bench.writer.open(opening(), lambda: None)
        broken.add_text("never arrives")
        good.add_text("arrives")
        async with asyncio.timeout(5):
            await good.drain()
        assert log.fold(good.job_id).text == "arrives"


async def test_a_log_that_is_refused_alone_holds_up_nobody_even_between_two_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its round trips fail one after the other; a pause between them would be everybody's."""
    monkeypatch.setattr(event_writer, "RETRY_S", (0.001, 3600.0))
    log = FakeLog()
    decide, refused = log._append, asyncio.Event()

    def refuse_one(batch: Batch) -> Any:
        if batch.job_id != broken.job_id:
            return decide(batch)
        refused.set()
        return ResponseError("WRONGTYPE")

    async with a_bench(log) as bench:
        await bench.drained()
        broken = bench.stream
        log._append = refuse_one  # type: ignore[method-assign]
        good = bench.writer.open(opening(), lambda: None)
        broken.add_text("never arrives")
        for word in ("it ", "all ", "arrives"):
            refused.clear()
            await asyncio.wait_for(refused.wait(), 5)
            good.add_text(word)
            await asyncio.wait_for(good.drain(), 5)
        assert log.fold(good.job_id).text == "it all arrives"


async def test_a_newer_epoch_in_the_log_means_that_the_job_is_lost() -> None:
    async with a_bench() as bench:
        bench.stream.add_text("mine")
        await bench.drained()
        other = recorded("expire", 2, "retrying", job_id=bench.job_id)
        await bench.log.append(Batch(bench.job_id, 2, 0, (other.event,)))
        bench.stream.add_text("late")
        await bench.drained()
        assert bench.lost == 1
        assert bench.stream.closed
        assert b"late" not in b"".join(event for _, event in bench.log.entries[bench.job_id])


async def test_a_log_that_has_its_end_already_means_that_the_job_is_lost() -> None:
    log = FakeLog()
    async with a_bench(log) as bench:
        await bench.drained()
        log._append = lambda batch: Append.ENDED  # type: ignore[method-assign]
        bench.stream.add_text("late")
        await bench.drained()
        assert bench.lost == 1


async def test_a_flushed_log_is_rebuilt_with_all_that_was_shown() -> None:
    async with a_bench() as bench:
        bench.stream.add_text("before")
        bench.stream.add_tool(ToolNote(id="c", name="clock", status="started"))
        await bench.drained()
        bench.log.flush()
        bench.stream.add_text(" after")
        await bench.drained()
        fold = bench.log.fold(bench.job_id)
        assert (fold.text, [tool["id"] for tool in fold.tools]) == ("before after", ["c"])
        assert bench.stream.epoch == 2


async def test_text_shown_while_a_rebuild_is_being_committed_follows_its_snapshot() -> None:
    async with a_bench() as bench:
        bench.stream.add_text("before")
        await bench.drained()
        bench.log.flush()
        committed = asyncio.Event()
        write = bench.database.write

        async def slow(*arguments: Any, **named: Any) -> Any:
            await committed.wait()
            return await write(*arguments, **named)

        bench.database.write = slow  # type: ignore[method-assign]
        bench.stream.add_text(" lost")
        while not bench.stream.rebuilding:  # noqa: ASYNC110 - one turn of the loop at a time
            await asyncio.sleep(0)
        bench.stream.add_text(" meanwhile")
        committed.set()
        await bench.drained()
        assert bench.shown == "before lost meanwhile"


@pytest.mark.parametrize("faults", [[LOST_BEFORE], [LOST_AFTER], [LOST_BEFORE, LOST_AFTER]])
async def test_a_rebuild_of_unknown_fate_is_looked_up_before_it_is_tried_again(faults: list[str]) -> None:
    async with a_bench(faults=faults) as bench:
        bench.stream.add_text("a")
        await bench.drained()
        bench.log.flush()
        bench.stream.add_text("b")
        await bench.drained()
        assert bench.shown == "ab"
        assert list(bench.rebuilds.made) == [2]
        assert bench.lost == 0


async def test_a_rebuild_whose_commit_arrives_after_the_look_is_still_its_own() -> None:
    async with a_bench(faults=[LOST_BEFORE]) as bench:
        bench.stream.add_text("a")
        await bench.drained()
        bench.log.flush()
        look = bench.database._read

        def commit_after_the_look(job_id: str, epoch: int) -> Recorded | None:
            found: Recorded | None = look(job_id, epoch)
            if found is None:
                bench.rebuilds.write(None, job_id, epoch - 1, "ab", [])
            return found

        bench.database._read = commit_after_the_look
        bench.stream.add_text("b")
        await bench.drained()
        assert bench.shown == "ab"
        assert (bench.lost, list(bench.rebuilds.made)) == (0, [2])


async def test_a_refused_rebuild_means_that_the_job_is_lost() -> None:
    async with a_bench() as bench:
        await bench.drained()
        bench.log.flush()
        bench.rebuilds.refuse = True
        bench.stream.add_text("a")
        await bench.drained()
        assert bench.lost == 1


async def test_a_rebuild_whose_place_somebody_else_took_means_that_the_job_is_lost() -> None:
    async with a_bench(faults=[LOST_BEFORE]) as bench:
        await bench.drained()
        bench.log.flush()
        bench.rebuilds.made[2] = recorded("expire", 2, "retrying", job_id=bench.job_id)
        bench.stream.add_text("a")
        await bench.drained()
        assert bench.lost == 1


async def test_sealing_waits_for_the_log_and_returns_the_epoch() -> None:
    async with a_bench() as bench:
        bench.stream.add_text("a")
        assert await bench.writer.seal(bench.stream, 5) == 1
        assert bench.shown == "a"
        assert bench.stream.closed


async def test_sealing_gives_up_on_a_log_that_does_not_answer() -> None:
    async with a_bench(FakeLog([LOST_BEFORE] * 1_000_000)) as bench:
        bench.stream.add_text("a")
        async with asyncio.timeout(5):
            assert await bench.writer.seal(bench.stream, 0.01) == 1


async def test_sealing_waits_for_a_rebuild_however_long_it_takes_and_returns_its_epoch() -> None:
    async with a_bench(faults=[LOST_BEFORE] * 50) as bench:
        await bench.drained()
        bench.log.flush()
        bench.stream.add_text("a")
        assert await bench.writer.seal(bench.stream, 0.001) == 2


async def test_a_stream_closed_by_the_loss_of_its_job_is_sealed_at_once() -> None:
    async with a_bench(FakeLog([LOST_BEFORE] * 1_000_000)) as bench:
        bench.stream.close()
        async with asyncio.timeout(1):
            await bench.writer.seal(bench.stream, 60)


@pytest.mark.parametrize(("fault", "told"), [("ok", True), (LOST_BEFORE, False), (LOST_AFTER, False)])
async def test_an_end_that_does_not_reach_the_log_is_left_to_the_reconciler(fault: str, told: bool) -> None:
    async with a_bench() as bench:
        await bench.writer.seal(bench.stream, 5)
        bench.log.faults = iter([fault])
        end = recorded("finish", 2, "final", job_id=bench.job_id, response=[])
        assert await bench.writer.append_last(end, timeout_s=1) is told


async def test_an_end_that_the_log_holds_up_is_left_to_the_reconciler() -> None:
    async with a_bench() as bench:
        await bench.writer.seal(bench.stream, 5)
        bench.log.pause = asyncio.Event().wait
        end = recorded("finish", 2, "final", job_id=bench.job_id, response=[])
        assert await bench.writer.append_last(end, timeout_s=0.01) is False


async def test_a_tool_note_that_no_json_can_say_is_refused_and_stops_no_other_job() -> None:
    async with a_bench() as bench:
        with pytest.raises(TypeError):
            bench.stream.add_tool(ToolNote(id="c", name="n", status="started", args={"a": {1, 2}}))
        bench.stream.add_text("heard")
        await bench.drained()
        assert bench.shown == "heard"
        assert bench.stream.tools == []
