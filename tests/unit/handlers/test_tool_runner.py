"""A tool call ends in a text for the model, whatever the tool does."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from handlers.threads import ThreadLimit
from handlers.tool_runner import MAX_ERROR, MAX_RESULT, ToolRunner
from schemas.agent_message import ToolCall
from schemas.agent_session import AgentSession
from schemas.errors import AgentInvocationError, StorageUnavailable, TransitionRefused
from schemas.progress import OpenCall
from schemas.tool import Tool, ToolContext, ToolEffect, ToolResult

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class ControlFlow(Exception):
    """Stands for an exception by which a framework steers itself."""


def tool(function: Callable[..., Any], effect: ToolEffect = "pure", **fields: Any) -> Tool:
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    return Tool("f", "", parameters, function=function, effect=effect, **fields)


async def run(one: Tool, args: dict[str, Any] | None = None, *, name: str = "f", **session: Any) -> ToolResult:
    runner = ToolRunner(
        AgentSession(session_id="s", tools=(one,), **session),
        ["earlier", "now"],
        control_flow=(ControlFlow,),
        threads=ThreadLimit(2),
    )
    return await runner.run(ToolCall(id="call", name=name, args=args or {}))


async def test_a_synchronous_tool_runs_on_a_thread_with_the_callers_context() -> None:
    VARIABLE.set("mine")

    result = await run(tool(lambda: f"{VARIABLE.get()} {threading.current_thread() is threading.main_thread()}"))

    assert result == ToolResult("mine False")


async def test_an_asynchronous_tool_runs_on_the_loop() -> None:
    async def function(x: str) -> str:
        await asyncio.sleep(0)
        return x + str(threading.current_thread() is threading.main_thread())

    assert await run(tool(function), {"x": "on main: "}) == ToolResult("on main: True")


async def test_an_object_with_an_asynchronous_call_is_a_tool_too() -> None:
    class Called:
        async def __call__(self) -> str:
            return "called"

    assert await run(tool(Called())) == ToolResult("called")


async def test_a_function_that_returns_an_awaitable_is_awaited() -> None:
    async def inner() -> str:
        return "awaited"

    assert await run(tool(lambda: inner())) == ToolResult("awaited")


async def test_a_tool_that_wants_the_context_gets_it() -> None:
    def function(context: ToolContext) -> str:
        return f"{context.session_id} {context.job_id} {context.user_texts}"

    result = await run(tool(function, wants_context=True), job_id="j")

    assert result == ToolResult("s j ('earlier', 'now')")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        ("", "(no output)"),
        (None, "(no output)"),
        (5, "5"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ({1: 2}, '{"1":2}'),
        ({3 + 4j}, '"{(3+4j)}"'),
        ("a\x00\ud800", "a\ufffd\ufffd"),
    ],
)
async def test_whatever_a_tool_returns_becomes_text(value: Any, text: str) -> None:
    assert await run(tool(lambda: value)) == ToolResult(text)


async def test_a_huge_result_keeps_its_beginning_and_its_end() -> None:
    result = await run(tool(lambda: "BEGIN" + "x" * 5_000_000 + "END"))

    assert len(result.text) < MAX_RESULT + 100
    assert result.text.startswith("BEGIN")
    assert result.text.endswith("END")
    assert "characters left out" in result.text


async def test_an_exception_becomes_an_error_for_the_model() -> None:
    def function() -> None:
        raise ValueError("no such city" + "x" * 1_000_000)

    result = await run(tool(function))

    assert result.is_error
    assert result.text.startswith("ValueError: no such city")
    assert len(result.text) < MAX_ERROR + 100


async def test_a_tool_that_exits_is_an_error_too() -> None:
    def function() -> None:
        raise SystemExit(3)

    assert (await run(tool(function))).is_error


@pytest.mark.parametrize(
    "error",
    [
        ControlFlow(),
        asyncio.CancelledError(),
        TransitionRefused(),
        StorageUnavailable(),
        AgentInvocationError("on purpose"),
    ],
)
async def test_what_is_not_an_error_of_the_tool_passes_untouched(error: BaseException) -> None:
    async def asynchronous() -> None:
        raise error

    def synchronous() -> None:
        raise error

    for function in (asynchronous, synchronous):
        with pytest.raises(type(error)) as caught:
            await run(tool(function))
        assert caught.value is error


async def test_a_synchronous_tool_that_is_too_slow_is_left_behind() -> None:
    release = threading.Event()

    result = await run(tool(lambda: release.wait(10), timeout_s=0.02))

    assert result == ToolResult("The tool did not finish within 0.02 s.", is_error=True)
    release.set()


async def test_an_asynchronous_tool_that_is_too_slow_is_cancelled() -> None:
    ended = asyncio.Event()

    async def function() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.set()

    result = await run(tool(function, effect="write", timeout_s=0.02))

    assert result.text == "The tool did not finish within 0.02 s; whether it took effect is not known."
    assert ended.is_set()


async def test_a_timeout_of_the_tools_own_is_an_error_like_others() -> None:
    def function() -> None:
        raise TimeoutError("the database")

    assert await run(tool(function)) == ToolResult("TimeoutError: the database", is_error=True)


async def test_an_unknown_tool_gets_the_list_of_tools() -> None:
    assert await run(tool(lambda: None), name="g") == ToolResult("There is no tool 'g'; known are: f", is_error=True)


async def test_wrong_arguments_do_not_reach_the_tool() -> None:
    called = []

    result = await run(tool(lambda x: called.append(x)), {"x": 5})

    assert result == ToolResult("Not run, the arguments are wrong: 'x' must be string", is_error=True)
    assert called == []


async def test_a_tool_that_writes_is_recorded_before_it_runs() -> None:
    order: list[Any] = []

    async def start(name: str, args: dict[str, Any], call_id: str, effect: str) -> str:
        order.append((name, args, call_id, effect))
        return "key"

    async def finish(key: str, result: ToolResult) -> None:
        order.append((key, result))

    await run(tool(lambda x: order.append("ran"), "write"), {"x": "y"}, start_tool_call=start, finish_tool_call=finish)
    await run(tool(lambda: order.append("read"), "read"), start_tool_call=start, finish_tool_call=finish)

    assert order == [("f", {"x": "y"}, "call", "write"), "ran", ("key", ToolResult("(no output)")), "read"]


async def test_a_tool_that_writes_knows_the_key_it_is_recorded_under() -> None:
    async def start(name: str, args: dict[str, Any], call_id: str, effect: str) -> str:
        return "key"

    def function(context: ToolContext) -> str:
        return str(context.idempotency_key)

    keyed = tool(function, "write", wants_context=True, takes_idempotency_key=True)
    assert await run(keyed, start_tool_call=start) == ToolResult("key")
    assert await run(tool(function, wants_context=True), start_tool_call=start) == ToolResult("None")


async def test_a_result_is_recorded_although_the_attempt_is_stopped_meanwhile() -> None:
    begun, go, recorded = asyncio.Event(), asyncio.Event(), []

    async def finish(key: str, result: ToolResult) -> None:
        begun.set()
        await go.wait()
        recorded.append(result)

    running = asyncio.create_task(run(tool(lambda: "sent", "write"), finish_tool_call=finish))
    await begun.wait()
    running.cancel()
    asyncio.get_running_loop().call_later(0.05, go.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert recorded == [ToolResult("sent")]


OPEN = OpenCall("key", "call", "f", {"x": "y"})


@pytest.mark.parametrize(
    ("fields", "call"),
    [
        ({}, OPEN),
        ({"takes_idempotency_key": True}, replace(OPEN, name="gone")),
        ({"takes_idempotency_key": True}, replace(OPEN, args={"x": 5})),
    ],
    ids=["takes no key", "is gone", "takes other arguments now"],
)
async def test_a_call_is_not_repeated_by_a_tool_that(fields: dict[str, Any], call: OpenCall) -> None:
    ran = []
    one = tool(lambda context, x: ran.append(x), "write", wants_context=True, **fields)
    assert await ToolRunner(AgentSession(session_id="s", tools=(one,))).repeat(call) is None
    assert ran == []


async def test_a_repeated_call_has_the_key_of_the_first_one_and_its_result_is_recorded() -> None:
    finished = []

    async def finish(key: str, result: ToolResult) -> None:
        finished.append((key, result))

    def function(context: ToolContext, x: str) -> str:
        return f"{x} {context.idempotency_key}"

    one = tool(function, "write", wants_context=True, takes_idempotency_key=True)
    session = AgentSession(session_id="s", tools=(one,), finish_tool_call=finish)
    assert await ToolRunner(session).repeat(OPEN) == ToolResult("y key")
    assert finished == [("key", ToolResult("y key"))]


async def test_a_write_that_may_not_be_recorded_does_not_run() -> None:
    ran = []

    async def start(name: str, args: dict[str, Any], call_id: str, effect: str) -> str:
        raise TransitionRefused

    with pytest.raises(TransitionRefused):
        await run(tool(lambda: ran.append(1), "write"), start_tool_call=start)
    assert ran == []
