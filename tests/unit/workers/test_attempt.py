"""However a handler answers or fails, its attempt comes to exactly one ending with what was shown kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from handlers.base import BaseAgentHandler
from schemas.agent_message import AgentMessage, Usage
from schemas.errors import (
    AgentInvocationError,
    ConfigurationError,
    InvalidRequest,
    StorageUnavailable,
    TransitionRefused,
)
from schemas.stream_event import StreamEvent
from tests.unit.workers.claims import a_claim
from tests.unit.workers.playing import (
    HomeMade,
    Running,
    end_of,
    failure_of,
    final,
    plays,
    say,
    tool,
)
from workers.attempt import Attempt
from workers.ending import Answered, Failed, Lost
from workers.job_stream import JobStream


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

    async def make() -> BaseAgentHandler:
        raise ConfigurationError("the model 'x' is not known")

    ending = await attempt.run(make, JobStream(attempt.claim.recorded, lambda stream: None), 5)
    assert isinstance(ending, Failed)
    assert ending.error.code == "configuration"
