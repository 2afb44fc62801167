"""The two steps of an agent: ask the model, run the tools it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar, cast

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langgraph.runtime import Runtime

from graph.context import TurnContext
from graph.failures import failure_of, is_filtered
from graph.messages import agent_messages
from graph.reply import Reply
from graph.state import AgentState
from graph.tool_notes import finished_note, started_note
from graph.turn import Turn
from schemas.agent_message import ToolCall
from schemas.errors import AgentInvocationError, ChatmillError
from schemas.stream_event import StreamEvent
from schemas.tool import ToolResult

T = TypeVar("T")

#: Seconds that tools get to end after they have been cancelled; one that does not is left behind.
CANCEL_S = 2.0

#: Rounds of one answer that name a tool which does not exist, after which the model is given up on.
MAX_UNKNOWN_ROUNDS = 3


async def call_model(state: AgentState, runtime: Runtime[TurnContext]) -> dict[str, Any]:
    """One reply of the model, its text shown to the reader as it comes.

    Raises AgentInvocationError for a reply that is not whole, and TimeoutError at the answer's deadline.
    """
    context = runtime.context
    turn = Turn(state, context.system_prompt, context.emit or runtime.stream_writer)
    reply = Reply()
    try:
        async with asyncio.timeout_at(context.deadline):
            # The runnable is typed as an iterator; what it returns is a generator, and its stream must be closed.
            chunks = cast("Any", context.model.astream(turn.prompt(), **context.parameters))
            async with aclosing(chunks):
                async for chunk in chunks:
                    turn.show(reply.add(chunk))
    except (TimeoutError, ChatmillError):
        raise
    except Exception as error:
        if is_filtered(error):
            return turn.blocked(reply)
        raise failure_of(error) from error
    turn.show(reply.end())
    return turn.finish(reply)


class Node(Protocol):
    """A step of the graph: from the state to the state's update."""

    def __call__(self, state: AgentState, runtime: Runtime[TurnContext]) -> Awaitable[dict[str, Any]]: ...


def tool_node(known: Collection[str]) -> Node:
    """The step that runs the calls of the last message, all at once, and saves the finished round.

    Raises AgentInvocationError once the model has asked for tools that do not exist too often.
    """

    async def run_tools(state: AgentState, runtime: Runtime[TurnContext]) -> dict[str, Any]:
        context = runtime.context
        emit = context.emit or runtime.stream_writer
        asked = cast("AIMessage", state["messages"][-1])
        calls = [ToolCall(id=call["id"] or "", name=call["name"], args=call["args"]) for call in asked.tool_calls]
        unknown_rounds = state.get("unknown_rounds", 0) + any(call["name"] not in known for call in calls)
        if unknown_rounds >= MAX_UNKNOWN_ROUNDS:
            raise AgentInvocationError("the model keeps calling tools that do not exist", code="unknown_tool")
        invalid = state.get("invalid_calls", {})

        async def run(call: ToolCall) -> ToolMessage:
            emit(StreamEvent("tool", tool=started_note(call)))
            if call["id"] in invalid:
                result = ToolResult(f"Not run: {invalid[call['id']]}. Send one JSON object.", is_error=True)
            else:
                result = await context.run_tool(call)
            emit(StreamEvent("tool", tool=finished_note(call, result)))
            status = "error" if result.is_error else "success"
            return ToolMessage(result.text, tool_call_id=call["id"], status=status)

        async with asyncio.timeout_at(context.deadline):
            results = await _all_or_first_error([run(call) for call in calls])
        round_messages: list[AnyMessage] = [asked, *results]
        await context.save_round(agent_messages(round_messages), state.get("reply_usage"))
        return {"messages": results, "unknown_rounds": unknown_rounds}

    return run_tools


async def _all_or_first_error(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in order; the first error as it is, after the others have been cancelled and have ended."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=CANCEL_S)
