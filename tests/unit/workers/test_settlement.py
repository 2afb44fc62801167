"""An attempt is settled exactly once, however often SQL loses the reply, and told of only as SQL has it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import pytest

from schemas.agent_message import AgentMessage
from schemas.errors import JobError, StorageUnavailable, TransitionRefused
from schemas.settings import Settings
from storage.jobs import settle
from storage.jobs.move import AttemptRecord
from storage.jobs.statements import Recorded
from tests.unit.workers.claims import a_claim, recorded
from tests.unit.workers.fakes import LOST_AFTER, LOST_BEFORE, OK, FakeDatabase, FakeLog
from workers import settlement as settlement_module
from workers.attempt import Attempt, StopReason
from workers.ending import Answer, Answered, Cancelled, Ending, Failed, Lost, Released
from workers.event_writer import EventWriter
from workers.settlement import BUSY_DELAY_S, JITTER, MAX_DELAY_S, Settlement

#: The commit arrives at the database after its reply was given up.
LATE = "late"
SAID = [AgentMessage.assistant("hello")]
ANSWERED = Answered(Answer(SAID, None, "ok"))
ERROR = JobError(code="agent_error", message="no", retryable=True)
RECORD = AttemptRecord(shown_text="hel")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement_module, "SQL_RETRY_S", (0.0,))


class Row:
    """One job's row and its transitions, as SQL guards them."""

    def __init__(self, claim: Any) -> None:
        self.job_id, self.epoch = claim.job_id, claim.epoch
        self.transitions: dict[int, Recorded] = {}
        self.commits: list[tuple[str, dict[str, Any]]] = []
        self.late: list[Any] = []
        self.refuse_to_store: type[Exception] | None = None

    def transition(self, kind: str, event_kind: str) -> Any:
        """In place of a function of storage.jobs.settle."""

        def commit(connection: Any, job_id: str, epoch: int, *arguments: Any, **named: Any) -> Recorded:
            assert job_id == self.job_id
            if epoch != self.epoch:
                raise TransitionRefused(job_id)
            if self.refuse_to_store is not None and kind == "finish":
                raise self.refuse_to_store("parameters: hello")
            self.commits.append((kind, named))
            return self.move(kind, event_kind)

        return commit

    def move(self, kind: str, event_kind: str) -> Recorded:
        self.epoch += 1
        self.transitions[self.epoch] = made = recorded(kind, self.epoch, event_kind, job_id=self.job_id)
        return made

    def read(self, job_id: str, epoch: int) -> Recorded | None:
        found = self.transitions.get(epoch)
        for commit in self.late:
            with suppress(TransitionRefused):
                commit()
        self.late.clear()
        return found

    def write(self, transition: Any) -> Any:
        return transition(None)


class LateDatabase(FakeDatabase):
    """Its `late` fault lets the commit happen after the next look at the row."""

    def __init__(self, row: Row, faults: list[str]) -> None:
        super().__init__(row.write, row.read)
        self.row = row
        self.plan = iter(faults)

    async def write(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        fault = next(self.plan, OK)
        if fault == LATE:
            self.row.late.append(lambda: function(None))
            raise StorageUnavailable("the database does not answer")
        self.faults = iter([fault])
        return await super().write(function, *args, **kwargs)


class Bench:
    """A settlement with its row, log and an attempt that has just ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, faults: list[str], **settings: Any) -> None:
        self.attempt = Attempt(a_claim())
        self.row = Row(self.attempt.claim)
        for name, event_kind in (
            ("finish", "final"), ("fail", "retrying"), ("cancel", "cancelled"), ("release", "requeued"),
        ):  # fmt: skip
            monkeypatch.setattr(settle, name, self.row.transition(name, event_kind))
        self.database = LateDatabase(self.row, faults)
        self.log = FakeLog()
        self.writer = EventWriter(self.database, self.log.log)
        self.stream = self.writer.open(self.attempt.claim.recorded, lambda: self.attempt.stop(StopReason.LOST))
        self.settlement = Settlement(Settings(**settings), self.database, self.writer)

    async def settle(self, ending: Ending) -> Recorded | None:
        return await self.settlement.settle(self.attempt, ending, self.stream)

    @property
    def told(self) -> list[str]:
        return [orjson.loads(event)["kind"] for _, event in self.log.entries.get(self.row.job_id, [])]


class Benches:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    @asynccontextmanager
    async def __call__(self, *faults: str, **settings: Any) -> AsyncIterator[Bench]:
        bench = Bench(self.monkeypatch, list(faults), **settings)
        bench.writer.start()
        yield bench
        await bench.writer.close()


@pytest.fixture
def a_bench(monkeypatch: pytest.MonkeyPatch) -> Benches:
    return Benches(monkeypatch)


ENDINGS: list[tuple[Ending, str, str]] = [
    (ANSWERED, "finish", "final"),
    (Failed(ERROR, True, None, SAID, RECORD), "fail", "retrying"),
    (Cancelled("enough", SAID, RECORD), "cancel", "cancelled"),
    (Released(SAID, RECORD), "release", "requeued"),
]


@pytest.mark.parametrize(("ending", "kind", "event_kind"), ENDINGS)
@pytest.mark.parametrize(
    "faults",
    [[], [LOST_BEFORE], [LOST_BEFORE] * 5, [LOST_AFTER], [LOST_BEFORE, LOST_AFTER], [LATE], [LOST_BEFORE, LATE]],
)
async def test_an_ending_is_committed_once_and_told_after_what_was_shown(
    a_bench: Benches, ending: Ending, kind: str, event_kind: str, faults: list[str]
) -> None:
    async with a_bench(*faults) as bench:
        bench.stream.add_text("hello")
        made = await bench.settle(ending)
        assert made == bench.row.transitions[2]
        assert [commit for commit, _ in bench.row.commits] == [kind]
        assert bench.told == ["started", "text", event_kind]


async def test_the_look_at_the_row_is_repeated_until_sql_answers(a_bench: Benches) -> None:
    async with a_bench(LOST_AFTER) as bench:
        bench.database.read_faults = iter([LOST_BEFORE] * 3)
        assert await bench.settle(ANSWERED) == bench.row.transitions[2]
        assert len(bench.row.commits) == 1
        assert len(bench.database.reads) == 4


@pytest.mark.parametrize("faults", [[], [LOST_BEFORE], [LOST_BEFORE] * 3])
async def test_a_job_that_somebody_else_holds_by_now_is_left_to_them(a_bench: Benches, faults: list[str]) -> None:
    async with a_bench(*faults) as bench:
        bench.row.move("expire", "retrying")
        assert await bench.settle(ANSWERED) is None
        assert bench.row.commits == []
        assert "final" not in bench.told


async def test_a_commit_of_unknown_fate_that_lost_against_somebody_else_is_given_up(a_bench: Benches) -> None:
    async with a_bench(LATE) as bench:
        bench.row.late.append(lambda: bench.row.move("expire", "retrying"))
        assert await bench.settle(ANSWERED) is None
        assert bench.row.commits == []


async def test_a_lost_attempt_writes_nothing(a_bench: Benches) -> None:
    async with a_bench() as bench:
        assert await bench.settle(Lost()) is None
        assert bench.database.writes == []


async def test_an_attempt_that_turns_out_lost_while_its_text_is_flushed_writes_nothing(a_bench: Benches) -> None:
    async with a_bench() as bench:
        taken = recorded("expire", 2, "retrying", job_id=bench.row.job_id)
        await bench.log.append(bench.stream.next_batch() or pytest.fail("nothing to send"))
        bench.log.entries[bench.row.job_id].append(
            (bench.log.entries[bench.row.job_id][0][0]._replace(epoch=2), taken.event)
        )
        bench.stream.add_text("late")
        assert await bench.settle(ANSWERED) is None
        assert bench.database.writes == []


async def test_an_answer_the_database_refuses_to_store_is_a_failure_like_any_other(a_bench: Benches) -> None:
    async with a_bench() as bench:
        bench.row.refuse_to_store = ValueError
        made = await bench.settle(ANSWERED)
        assert made is not None
        assert made.kind == "fail"
        assert len(bench.row.commits) == 1


async def test_a_log_that_does_not_answer_holds_up_no_commit(a_bench: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement_module, "LOG_TIMEOUT_S", 0.01)
    async with a_bench() as bench:
        bench.log.faults = iter(lambda: LOST_BEFORE, "never")
        bench.stream.add_text("hello")
        assert await bench.settle(ANSWERED) == bench.row.transitions[2]


async def test_random_outages_never_commit_twice_nor_lose_what_was_committed(a_bench: Benches) -> None:
    happened: Counter[str] = Counter()
    for seed in range(200):
        chance = random.Random(seed)
        faults = chance.choices((OK, LOST_BEFORE, LOST_AFTER, LATE), k=6)
        async with a_bench(*faults) as bench:
            bench.database.read_faults = iter(chance.choices((OK, LOST_BEFORE), k=4))
            if chance.random() < 0.2:
                bench.row.late.append(lambda: bench.row.move("expire", "retrying"))
            ending, kind, event_kind = chance.choice(ENDINGS)
            made = await bench.settle(ending)
            ours = bench.row.transitions[2].kind == kind
            assert len(bench.row.commits) == ours, (seed, faults)
            assert made == (bench.row.transitions[2] if ours else None), (seed, faults)
            assert (event_kind in bench.told) == ours, (seed, faults)
            happened["ours" if ours else "theirs"] += 1
            happened.update(faults[: len(bench.database.writes)])
    assert min(happened[what] for what in ("ours", "theirs", LOST_BEFORE, LOST_AFTER, LATE)) > 10, happened


async def delays(a_bench: Benches, failed: Failed, **settings: Any) -> list[float]:
    found = []
    for _ in range(40):
        async with a_bench(**settings) as bench:
            await bench.settle(failed)
            found.append(bench.row.commits[0][1]["delay_us"] / 1_000_000)
    return found


def failure(*, charged: bool = True, retry_after: float | None = None) -> Failed:
    return Failed(ERROR, charged, retry_after, [], RECORD)


async def test_a_retry_comes_after_the_set_pause_give_or_take_a_quarter(a_bench: Benches) -> None:
    found = await delays(a_bench, failure(), retry_delay_s=2)
    assert 2 * (1 - JITTER) <= min(found) < 1.8
    assert 2.2 < max(found) <= 2 * (1 + JITTER)


async def test_a_busy_provider_is_given_some_seconds(a_bench: Benches) -> None:
    found = await delays(a_bench, failure(charged=False), retry_delay_s=0)
    assert BUSY_DELAY_S * (1 - JITTER) <= min(found) <= max(found) <= BUSY_DELAY_S * (1 + JITTER)


@pytest.mark.parametrize(
    ("asked", "waited"), [(7.0, 7.0), (0.0, 0.0), (10_000.0, MAX_DELAY_S), (float("inf"), MAX_DELAY_S)]
)
async def test_the_pause_a_provider_asks_for_is_kept_within_reason(
    a_bench: Benches, asked: float, waited: float
) -> None:
    assert set(await delays(a_bench, failure(charged=False, retry_after=asked))) == {waited}


@pytest.mark.parametrize("asked", [float("nan"), -5.0])
async def test_a_pause_that_makes_no_sense_is_no_pause(a_bench: Benches, asked: float) -> None:
    assert all(0 <= delay <= MAX_DELAY_S for delay in await delays(a_bench, failure(retry_after=asked)))
