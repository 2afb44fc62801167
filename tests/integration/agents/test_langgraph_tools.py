"""Tool calls run once, whole, and beside each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from langgraph.errors import GraphBubbleUp

from schemas.agent_message import AgentMessage, ToolCall, Usage
from schemas.errors import TransitionRefused
from schemas.progress import Progress
from tests.demo_server import DemoServer
from tests.integration.agents.asking import SUM, a_tool, ask, session


@pytest.mark.parametrize(
    "fault", ["args-cut-length", "args-cut-tool-calls", "args-invalid", "args-list", "empty-name", "unknown-tool"]
)
async def test_a_call_that_is_not_whole_never_runs_and_the_model_is_told(demo: DemoServer, fault: str) -> None:
    ran: list[str] = []
    probe = a_tool(lambda x="": ran.append(x), "calculator")

    answer = await ask(session(demo, f"demo-fault-{fault}", tools=(probe,)), SUM)

    assert ran == []
    assert answer.final.outcome == "ok"
    assert answer.events[1].tool is not None
    assert answer.events[1].tool.get("is_error") is True


async def test_a_second_call_that_is_not_whole_is_a_failure(demo: DemoServer) -> None:
    answer = await ask(session(demo), '[call:calculator {"x": y}][then][call:calculator {"x": y}]')

    assert answer.error is not None
    assert (answer.error.code, answer.error.retryable) == ("invalid_tool_call", True)


@pytest.mark.parametrize(
    ("fault", "count"),
    [
        ("args-null", 1),
        ("args-object", 1),
        ("no-index", 2),
        ("no-index-split", 2),
        ("same-index", 2),
        ("index-from-one", 2),
        ("interleaved", 2),
        ("no-id", 1),
        ("empty-id", 1),
        ("duplicate-ids", 2),
        ("names-repeated", 1),
        ("names-null", 1),
        ("tool-finish-stop", 1),
    ],
)
async def test_calls_in_odd_pieces_run_once_each(demo: DemoServer, fault: str, count: int) -> None:
    answer = await ask(session(demo, f"demo-fault-{fault}"), SUM)
    ids = [message.tool_call_id for message in answer.response if message.role == "tool"]

    assert answer.results == ["408"] * count
    assert len(set(ids)) == count
    assert None not in ids


async def test_one_failing_tool_does_not_take_the_other_with_it(demo: DemoServer) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    tools = (a_tool(lambda: "fine", "good"), a_tool(fail, "bad"))
    answer = await ask(session(demo, tools=tools), "[call:good {}][call:bad {}]")

    assert answer.results == ["fine", "RuntimeError: broken"]
    assert answer.final.outcome == "ok"


async def test_tools_of_one_reply_run_at_the_same_time(demo: DemoServer) -> None:
    barrier = threading.Barrier(2, timeout=10)
    tools = tuple(a_tool(lambda: str(barrier.wait() >= 0), name) for name in ("a", "b"))

    answer = await ask(session(demo, tools=tools), "[call:a {}][call:b {}]")

    assert answer.results == ["True", "True"]


async def test_a_tool_that_is_too_slow_does_not_stop_the_answer(demo: DemoServer) -> None:
    release = threading.Event()
    slow = a_tool(lambda: release.wait(10), timeout_s=0.05)

    answer = await ask(session(demo, tools=(slow,)), "[call:probe {}]")

    assert "did not finish" in answer.results[0]
    release.set()


async def test_a_huge_result_is_cut_for_the_model_and_more_for_readers(demo: DemoServer) -> None:
    answer = await ask(session(demo, tools=(a_tool(lambda: "x" * 5_000_000),)), "[call:probe {}]")
    finished = answer.events[1].tool

    assert finished is not None
    assert len(finished.get("result", "")) < 5_000
    assert 5_000 < len(answer.results[0]) < 40_000


async def test_a_write_is_recorded_before_it_runs(demo: DemoServer) -> None:
    order: list[str] = []

    async def start(name: str, args: dict[str, Any], call_id: str, effect: str) -> str:
        order.append(f"recorded {name} {args} {effect}")
        return "key"

    write = a_tool(lambda x: order.append("ran"), effect="write")
    await ask(session(demo, tools=(write,), start_tool_call=start), '[call:probe {"x":"y"}]')

    assert order == ["recorded probe {'x': 'y'} write", "ran"]


@pytest.mark.parametrize("place", ["start_tool_call", "save_round"])
async def test_an_attempt_that_has_lost_its_job_stops_with_that_very_error(demo: DemoServer, place: str) -> None:
    refused = TransitionRefused()

    async def refuse(*arguments: Any) -> None:
        raise refused

    given = session(demo, tools=(a_tool(lambda: "x", effect="write"),), **{place: refuse})

    with pytest.raises(TransitionRefused) as caught:
        await ask(given, "[call:probe {}]")
    assert caught.value is refused


@pytest.mark.parametrize("error", [asyncio.CancelledError(), GraphBubbleUp()])
async def test_a_tool_that_steers_the_graph_never_ends_in_a_success(demo: DemoServer, error: BaseException) -> None:
    def function() -> None:
        raise error

    answer = await ask(session(demo, tools=(a_tool(function),)), "[call:probe {}]")

    assert answer.error is not None


async def test_the_step_limit_ends_the_answer_with_what_there_is(demo: DemoServer) -> None:
    rounds: list[Sequence[AgentMessage]] = []

    async def save_round(messages: Sequence[AgentMessage], usage: Usage | None) -> None:
        rounds.append(messages)

    answer = await ask(session(demo, "demo-fault-tool-loop", recursion_limit=6, save_round=save_round), SUM)
    calls = [call["id"] for message in answer.response for call in message.tool_calls or ()]

    assert answer.final.outcome == "step_limit"
    assert len(rounds) == 2
    assert calls == [message.tool_call_id for message in answer.response if message.role == "tool"]
    assert len(calls) == 3


async def test_an_answer_with_more_rounds_behind_it_than_steps_may_ask_the_model_once_more(demo: DemoServer) -> None:
    call = ToolCall(id="c0", name="calculator", args={"expression": "1"})
    kept = [AgentMessage.assistant("", [call]), AgentMessage(role="tool", content="1", tool_call_id="c0")]
    progress = Progress(rounds=9, messages=tuple(kept))

    answer = await ask(session(demo, recursion_limit=4, progress=progress), "[call:calculator {}][then][say:Done.]")

    assert (answer.final.outcome, answer.text) == ("ok", "Done.")
    assert answer.response == [AgentMessage.assistant("Done.")]


async def test_each_round_is_saved_with_the_tokens_of_its_own_model_call(demo: DemoServer) -> None:
    saved: list[Usage | None] = []

    async def save_round(messages: Sequence[AgentMessage], usage: Usage | None) -> None:
        saved.append(usage)

    two_rounds = '[call:calculator {"expression":"1"}][then][call:calculator {"expression":"2"}][then][say:Done.]'
    answer = await ask(session(demo, save_round=save_round), two_rounds)

    one, two = saved
    total = answer.final.usage
    assert one is not None
    assert two is not None
    assert total is not None
    assert two["prompt_tokens"] > one["prompt_tokens"]
    assert total["prompt_tokens"] > one["prompt_tokens"] + two["prompt_tokens"]
