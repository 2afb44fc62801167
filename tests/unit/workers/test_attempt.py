"""However a handler behaves, its attempt comes to exactly one ending, soon, with what was shown kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, cast

import pytest

from handlers.base import BaseAgentHandler
from schemas.agent_message import AgentMessage, Usage
from schemas.agent_session import AgentSession
from schemas.errors import (
    AgentInvocationError,
    ConfigurationError,
    InvalidRequest,
    StorageUnavailable,
    TransitionRefused,
)
from schemas.stream_event import StreamEvent, ToolNote
from tests.unit.workers.claims import a_claim
from workers import attempt as attempt_module
from workers.attempt import Attempt, StopReason
from workers.ending import Answered, Cancelled, Ending, Failed, Lost, Released
from workers.job_stream import JobStream

Events = AsyncGenerator[StreamEvent, None]
Play = Callable[[BaseAgentHandler], Events]


@pytest.fixture(autouse=True)
def _let_go_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "LET_GO_S", 0.05)


class Scripted(BaseAgentHandler):
    """Answers with what a test plays."""

    def __init__(self, play: Play) -> None:
        super().__init__(AgentSession(session_id="s"))
        self._play = play

    def invoke(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> tuple[list[AgentMessage], Usage | None]:
        raise NotImplementedError

    def astream(self, user_message: str) -> AsyncGenerator[tuple[str, Usage | None], None]:
        raise NotImplementedError

    def astream_events(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> Events:
        return self._play(self)


class Running:
    """An attempt that runs, and the stream it shows on."""

    def __init__(self, play: Play, *, timeout_s: float = 5) -> None:
        self.attempt = Attempt(a_claim())
        self.stream = JobStream(self.attempt.claim.recorded, lambda stream: None)
        self.shown = asyncio.Event()
        self.task = asyncio.create_task(self.attempt.run(lambda: Scripted(play), self.stream, timeout_s))

    async def ending(self) -> Ending:
        async with asyncio.timeout(5):
            return await self.task

    async def until_shown(self, text: str) -> None:
        async with asyncio.timeout(5):
            while self.stream.text != text:  # noqa: ASYNC110 - one turn of the loop at a time
                await asyncio.sleep(0)


async def end_of(play: Play, **named: Any) -> Ending:
    return await Running(play, **named).ending()


async def failure_of(play: Play, **named: Any) -> Failed:
    ending = await end_of(play, **named)
    assert isinstance(ending, Failed)
    return ending


def say(*pieces: str) -> list[StreamEvent]:
    return [StreamEvent("text", text=piece) for piece in pieces]


def final(text: str, **named: Any) -> StreamEvent:
    return StreamEvent("final", response=[AgentMessage.assistant(text)], **named)


def tool(status: Any = "started", **named: Any) -> StreamEvent:
    return StreamEvent("tool", tool=cast(ToolNote, {"id": "c", "name": "clock", "status": status, **named}))


def plays(*events: StreamEvent | BaseException) -> Play:
    """Yield events, raise errors."""

    async def play(handler: BaseAgentHandler) -> Events:
        for event in events:
            if isinstance(event, BaseException):
                raise event
            yield event

    return play


def says_and_waits(*pieces: str) -> Play:
    async def play(handler: BaseAgentHandler) -> Events:
        for event in say(*pieces):
            yield event
        await asyncio.Event().wait()

    return play


async def test_an_answer_is_its_messages_its_usage_and_its_outcome() -> None:
    usage = Usage(prompt_tokens=1, completion_tokens=2, total_tokens=3)
    ending = await end_of(plays(*say("Hel", "lo"), final("Hello", usage=usage, outcome="step_limit")))
    assert isinstance(ending, Answered)
    assert ending.answer.response == [AgentMessage.assistant("Hello")]
    assert (ending.answer.usage, ending.answer.outcome) == (usage, "step_limit")


async def test_an_agent_may_say_nothing() -> None:
    assert isinstance(await end_of(plays(final(""))), Answered)


async def test_events_after_the_final_one_are_not_asked_for() -> None:
    running = Running(plays(*say("a"), final("a"), *say("b"), final("b")))
    assert isinstance(await running.ending(), Answered)
    assert running.stream.text == "a"


@pytest.mark.parametrize("events", [[], say("a"), [StreamEvent("final")], [StreamEvent("final", response=[])]])
async def test_ending_without_an_answer_is_a_failure(events: list[StreamEvent]) -> None:
    failed = await failure_of(plays(*events))
    assert (failed.error.code, failed.error.retryable, failed.charged) == ("no_answer", True, True)


@pytest.mark.parametrize("said", ["Hell", "Hello!", ""])
async def test_a_final_answer_that_differs_from_the_stream_is_a_failure(said: str) -> None:
    failed = await failure_of(plays(*say("Hello"), final(said)))
    assert failed.error.code == "stream_mismatch"
    assert failed.record.shown_text == "Hello"


@pytest.mark.parametrize(
    ("pieces", "response", "shown"),
    [
        (["a\ud83d", "\ude00b"], "a\ud83d\ude00b", "a😀b"),
        (["a\ud83d", "b"], "a\ud83db", "a�b"),
        (["a\ud83d"], "a\ud83d", "a�"),
        (["\ude00"], "\ude00", "�"),
        (["nul\x00"], "nul\x00", "nul�"),
    ],
)
async def test_text_that_nothing_can_store_is_mended_alike_in_stream_and_answer(
    pieces: list[str], response: str, shown: str
) -> None:
    running = Running(plays(*say(*pieces), final(response)))
    ending = await running.ending()
    assert isinstance(ending, Answered)
    assert running.stream.text == shown == ending.answer.response[0].content


async def test_half_a_character_before_a_tool_call_is_shown_before_it() -> None:
    running = Running(plays(*say("a\ud83d"), tool(), *say("\ude00b"), final("no")))
    await running.ending()
    assert running.stream.text == "a��b"


async def test_tool_notes_are_mended_too() -> None:
    running = Running(plays(tool(args={"a\x00": ["\ud800", 2**70]}), tool("finished", result="\x00"), final("")))
    assert isinstance(await running.ending(), Answered)
    assert [note.get("args", note.get("result")) for note in running.stream.tools] == [{"a�": ["�", float(2**70)]}, "�"]


MALFORMED_NOTES: list[dict[str, Any]] = [
    {"args": {"a": {1}}},
    {"args": {"a": float("nan")}},
    {"args": {1: "a"}},
    {"args": ["a"]},
    {"result": {"not": "text"}},
    {"status": "paused"},
    {"id": None},
]


@pytest.mark.parametrize("note", MALFORMED_NOTES)
async def test_a_malformed_tool_note_is_a_failure_of_the_agent_and_leaves_nothing_unsayable(
    note: dict[str, Any],
) -> None:
    running = Running(plays(*say("a"), tool(**{"status": "started", **note}), final("a")))
    ending = await running.ending()
    assert isinstance(ending, Failed)
    assert ending.partial == [AgentMessage.assistant("a")]
    assert list(ending.record.shown_tools) == running.stream.tools == []


class HomeMade(Exception):
    """An error of an agent's own."""


@pytest.mark.parametrize(
    ("error", "code", "retryable", "charged"),
    [
        (HomeMade("secret: the user's words"), "agent_error", True, True),
        (AgentInvocationError("no", code="too_long", retryable=False), "too_long", False, True),
        (AgentInvocationError("busy", code="rate_limited", charged=False, retry_after=7), "rate_limited", True, False),
        (InvalidRequest("no such tool"), "invalid", False, True),
        (ConfigurationError("no key"), "configuration", False, True),
        (TimeoutError("of a socket"), "agent_error", True, True),
        (asyncio.CancelledError(), "agent_stuck", True, True),
        (GeneratorExit(), "agent_error", True, True),
        (NotImplementedError(), "agent_error", True, True),
        (SystemExit(1), "agent_error", True, True),
        (KeyboardInterrupt(), "agent_error", True, True),
    ],
)
async def test_what_a_handler_raises_decides_what_follows(
    error: BaseException, code: str, retryable: bool, charged: bool
) -> None:
    failed = await failure_of(plays(*say("shown"), error))
    assert (failed.error.code, failed.error.retryable, failed.charged) == (code, retryable, charged)
    assert "secret" not in failed.error.message
    assert failed.record.shown_text == "shown"
    assert failed.partial == [AgentMessage.assistant("shown")]


async def test_the_class_and_the_trace_of_an_error_are_kept() -> None:
    failed = await failure_of(plays(HomeMade("details")))
    assert failed.record.error_class == "HomeMade"
    assert failed.record.trace is not None
    assert "details" in failed.record.trace


async def test_the_wait_a_provider_asked_for_is_handed_on() -> None:
    failed = await failure_of(plays(AgentInvocationError("busy", charged=False, retry_after=7)))
    assert failed.retry_after == 7


async def test_a_database_that_is_away_is_no_fault_of_the_job() -> None:
    failed = await failure_of(plays(StorageUnavailable("no answer from postgresql://u:p@h/d")))
    assert (failed.error.retryable, failed.charged) == (True, False)
    assert "postgresql" not in failed.error.message


async def test_a_refused_write_means_that_the_job_is_lost() -> None:
    assert isinstance(await end_of(plays(TransitionRefused("epoch 1 is over"))), Lost)


async def test_a_handler_that_cannot_be_made_is_a_failure() -> None:
    attempt = Attempt(a_claim())

    def make() -> BaseAgentHandler:
        raise ConfigurationError("the model 'x' is not known")

    ending = await attempt.run(make, JobStream(attempt.claim.recorded, lambda stream: None), 5)
    assert isinstance(ending, Failed)
    assert ending.error.code == "configuration"


async def test_an_attempt_that_takes_too_long_fails_as_timeout_and_may_be_tried_again() -> None:
    failed = await failure_of(says_and_waits("a"), timeout_s=0.05)
    assert (failed.error.code, failed.error.retryable, failed.charged) == ("timeout", True, True)
    assert failed.record.shown_text == "a"


ENDINGS = {
    StopReason.SHUTDOWN: Released,
    StopReason.DEADLINE: Failed,
    StopReason.CANCEL: Cancelled,
    StopReason.LOST: Lost,
}


@pytest.mark.parametrize("reason", StopReason)
async def test_a_stopped_attempt_ends_as_its_reason_says_with_what_was_shown(reason: StopReason) -> None:
    running = Running(says_and_waits("a"))
    await running.until_shown("a")
    running.attempt.stop(reason, "because")
    ending = await running.ending()
    assert type(ending) is ENDINGS[reason]
    if not isinstance(ending, Lost | Answered):
        assert ending.record.shown_text == "a"
        assert ending.partial == [AgentMessage.assistant("a")]
    if isinstance(ending, Cancelled):
        assert ending.reason == "because"
    if isinstance(ending, Failed):
        assert (ending.error.code, ending.error.retryable) == ("deadline", False)


def test_a_lost_job_outweighs_a_cancel_that_a_deadline_that_a_shutdown() -> None:
    assert StopReason.LOST > StopReason.CANCEL > StopReason.DEADLINE > StopReason.SHUTDOWN


@pytest.mark.parametrize("first", StopReason)
@pytest.mark.parametrize("second", StopReason)
async def test_of_two_reasons_to_stop_the_stronger_one_counts(first: StopReason, second: StopReason) -> None:
    running = Running(says_and_waits("a"))
    await running.until_shown("a")
    running.attempt.stop(first, "first")
    running.attempt.stop(second, "second")
    assert type(await running.ending()) is ENDINGS[max(first, second)]
    assert running.attempt.cancel_reason == ("first" if first >= second else "second")


async def test_an_attempt_that_was_stopped_before_it_began_never_calls_its_handler() -> None:
    attempt = Attempt(a_claim())
    attempt.stop(StopReason.SHUTDOWN)
    ending = await attempt.run(
        lambda: pytest.fail("the handler was made"), JobStream(attempt.claim.recorded, lambda stream: None), 5
    )
    assert isinstance(ending, Released)


async def test_an_answer_that_was_complete_before_the_stop_is_kept() -> None:
    running = Running(plays(*say("a"), final("a")))
    await running.until_shown("a")
    assert running.attempt._work is not None
    await asyncio.wait([running.attempt._work])
    running.attempt.stop(StopReason.CANCEL, "too late")
    assert isinstance(await running.ending(), Answered)


def closes_with(cleanup: Callable[[], Any]) -> Play:
    async def play(handler: BaseAgentHandler) -> Events:
        try:
            yield StreamEvent("text", text="a")
            yield final("a")
        finally:
            await cleanup()

    return play


async def fails() -> None:
    raise HomeMade


async def hangs() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("cleanup", [fails, hangs])
async def test_an_answer_is_kept_whatever_its_handler_does_while_it_closes(cleanup: Callable[[], Any]) -> None:
    assert isinstance(await end_of(closes_with(cleanup), timeout_s=3600), Answered)


async def test_an_answer_is_kept_if_the_stop_comes_while_its_handler_closes() -> None:
    closing = asyncio.Event()

    async def closes_slowly() -> None:
        closing.set()
        await asyncio.Event().wait()

    running = Running(closes_with(closes_slowly))
    await asyncio.wait_for(closing.wait(), 5)
    running.attempt.stop(StopReason.SHUTDOWN)
    assert isinstance(await running.ending(), Answered)


async def test_even_a_complete_answer_is_not_saved_once_the_job_is_somebody_elses() -> None:
    closing = asyncio.Event()

    async def closes_slowly() -> None:
        closing.set()
        await asyncio.Event().wait()

    running = Running(closes_with(closes_slowly))
    await asyncio.wait_for(closing.wait(), 5)
    running.attempt.stop(StopReason.LOST)
    assert isinstance(await running.ending(), Lost)


class Stubborn:
    """A handler that goes on however often it is cancelled, until the test lets it."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.gone = asyncio.Event()

    async def play(self, handler: BaseAgentHandler) -> Events:
        try:
            yield StreamEvent("text", text="a")
            while not self.release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await self.release.wait()
            yield StreamEvent("text", text=" too late")
            yield final("a too late")
        finally:
            self.gone.set()


@pytest.mark.parametrize("reason", StopReason)
async def test_a_handler_that_ignores_cancellation_is_left_behind(reason: StopReason) -> None:
    stubborn = Stubborn()
    running = Running(stubborn.play)
    await running.until_shown("a")
    running.attempt.stop(reason)
    ending = await running.ending()
    assert type(ending) is ENDINGS[reason]
    running.stream.close()
    stubborn.release.set()
    await asyncio.wait_for(stubborn.gone.wait(), 5)
    if isinstance(ending, Failed | Cancelled | Released):
        assert ending.partial == [AgentMessage.assistant("a")]
        assert ending.record.shown_text == "a"


async def test_a_handler_that_ignores_its_time_limit_is_left_behind_and_the_job_tried_again() -> None:
    stubborn = Stubborn()
    failed = await failure_of(stubborn.play, timeout_s=0.05)
    assert failed.error.retryable
    assert failed.charged
    stubborn.release.set()
    await asyncio.wait_for(stubborn.gone.wait(), 5)


async def test_an_attempt_whose_own_task_is_cancelled_gives_its_job_back() -> None:
    running = Running(says_and_waits("a"))
    await running.until_shown("a")
    running.task.cancel()
    assert isinstance(await running.ending(), Released)
