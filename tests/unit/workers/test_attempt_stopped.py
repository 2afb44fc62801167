"""An attempt that is stopped, or whose handler will not let go, still ends soon."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from handlers.base import BaseAgentHandler
from schemas.agent_message import AgentMessage
from schemas.stream_event import StreamEvent
from tests.unit.workers.claims import a_claim
from tests.unit.workers.playing import (
    Events,
    HomeMade,
    Play,
    Running,
    end_of,
    failure_of,
    final,
    plays,
    say,
    says_and_waits,
)
from workers import attempt as attempt_module
from workers.attempt import Attempt, StopReason
from workers.ending import Answered, Cancelled, Failed, Lost, Released
from workers.job_stream import JobStream


@pytest.fixture(autouse=True)
def _let_go_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "LET_GO_S", 0.05)


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
