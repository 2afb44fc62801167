"""A framework that writes only `invoke` and `astream` works like any other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

import pytest

from handlers.base import BaseAgentHandler
from schemas.agent_message import AgentMessage, ToolCall, Usage
from schemas.agent_session import AgentSession
from schemas.errors import AgentInvocationError, TransitionRefused
from schemas.stream_event import StreamEvent

USAGE = Usage(prompt_tokens=1, completion_tokens=2, total_tokens=3)


class OneGo(BaseAgentHandler):
    """Answers with whatever its function returns or raises."""

    answer: Callable[[], list[AgentMessage]]

    def invoke(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> tuple[list[AgentMessage], Usage | None]:
        return self.answer(), USAGE

    async def astream(self, user_message: str) -> AsyncGenerator[tuple[str, Usage | None], None]:
        yield user_message, USAGE


class InSteps(OneGo):
    """Answers with whatever its function yields."""

    steps: Callable[[], Iterator[StreamEvent]]

    def stream(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> Iterator[StreamEvent]:
        return self.steps()


def one_go(answer: Callable[[], list[AgentMessage]], **session: Any) -> OneGo:
    handler = OneGo(AgentSession(session_id="s", **session))
    handler.answer = answer
    return handler


def in_steps(steps: Callable[[], Iterator[StreamEvent]]) -> InSteps:
    handler = InSteps(AgentSession(session_id="s"))
    handler.steps = steps
    return handler


async def events_of(handler: BaseAgentHandler) -> list[StreamEvent]:
    return [event async for event in handler.astream_events("hi")]


async def failure_of(handler: BaseAgentHandler) -> AgentInvocationError:
    with pytest.raises(AgentInvocationError) as caught:
        await events_of(handler)
    return caught.value


async def test_an_answer_in_one_go_becomes_text_and_a_final_event() -> None:
    response = [AgentMessage.assistant("hello")]

    text, final = await events_of(one_go(lambda: response))

    assert text == StreamEvent("text", text="hello")
    assert final == StreamEvent("final", response=response, usage=USAGE)


async def test_tool_calls_of_an_answer_in_one_go_are_told_in_order() -> None:
    response = [
        AgentMessage.assistant("Let me see. ", [ToolCall(id="a", name="f", args={"x": 1})]),
        AgentMessage(role="tool", content="42", tool_call_id="a"),
        AgentMessage.assistant("It is 42."),
    ]

    events = await events_of(one_go(lambda: response))

    assert [event.kind for event in events] == ["text", "tool", "tool", "text", "final"]
    assert events[1].tool == {"id": "a", "name": "f", "status": "started", "args": {"x": 1}}
    assert events[2].tool == {"id": "a", "name": "f", "status": "finished", "result": "42"}


async def test_an_agent_that_said_nothing_gives_an_empty_reply() -> None:
    events = await events_of(one_go(lambda: [AgentMessage.assistant("")]))

    assert [event.kind for event in events] == ["final"]


async def test_an_empty_result_is_a_failure() -> None:
    assert (await failure_of(one_go(list))).code == "no_answer"


async def test_invoke_runs_beside_the_event_loop() -> None:
    def answer() -> list[AgentMessage]:
        return [AgentMessage.assistant(str(threading.get_ident()))]

    text, _ = await events_of(one_go(answer))

    assert text.text != str(threading.get_ident())


async def test_a_stream_is_passed_on_as_it_comes() -> None:
    steps = [StreamEvent("text", text="a"), StreamEvent("final", response=[AgentMessage.assistant("a")])]

    assert await events_of(in_steps(lambda: iter(steps))) == steps


async def test_a_stream_that_is_not_implemented_falls_back_to_invoke() -> None:
    def steps() -> Iterator[StreamEvent]:
        raise NotImplementedError

    handler = in_steps(steps)
    handler.answer = lambda: [AgentMessage.assistant("from invoke")]

    assert (await events_of(handler))[0].text == "from invoke"


async def test_a_stream_that_breaks_off_midway_is_not_answered_by_invoke() -> None:
    def steps() -> Iterator[StreamEvent]:
        yield StreamEvent("text", text="half")
        raise NotImplementedError

    assert (await failure_of(in_steps(steps))).code == "agent_error"


async def test_nothing_follows_the_final_event() -> None:
    final = StreamEvent("final", response=[AgentMessage.assistant("")])

    assert await events_of(in_steps(lambda: iter([final, StreamEvent("text", text="late"), final]))) == [final]


async def test_a_stream_without_a_final_event_is_a_failure() -> None:
    assert (await failure_of(in_steps(lambda: iter([StreamEvent("text", text="a")])))).code == "no_answer"


async def test_an_error_of_the_framework_names_its_type_only() -> None:
    def answer() -> list[AgentMessage]:
        raise ValueError("sk-secret")

    failure = await failure_of(one_go(answer))

    assert (failure.code, failure.retryable) == ("agent_error", True)
    assert str(failure) == "the agent failed with ValueError"
    assert isinstance(failure.__cause__, ValueError)


@pytest.mark.parametrize("error", [AgentInvocationError("x", code="mine"), TransitionRefused("x")])
async def test_our_own_errors_pass_untouched(error: Exception) -> None:
    def answer() -> list[AgentMessage]:
        raise error

    with pytest.raises(type(error)) as caught:
        await events_of(one_go(answer))
    assert caught.value is error


async def test_a_framework_that_hangs_fails_in_time_and_holds_nobody_up() -> None:
    release = threading.Event()

    def answer() -> list[AgentMessage]:
        release.wait(10)
        return []

    failure = await failure_of(one_go(answer, timeout_s=0.05))

    assert (failure.code, failure.retryable) == ("timeout", True)
    release.set()


def test_a_thread_that_is_left_behind_does_not_keep_the_loop_from_closing() -> None:
    release = threading.Event()

    def answer() -> list[AgentMessage]:
        release.wait(10)
        return []

    asyncio.run(failure_of(one_go(answer, timeout_s=0.05)))

    assert not release.is_set()
    release.set()


async def test_a_cancelled_reader_stops_at_once() -> None:
    release = threading.Event()

    def answer() -> list[AgentMessage]:
        release.wait(10)
        return []

    task = asyncio.create_task(events_of(one_go(answer)))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
