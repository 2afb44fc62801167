"""The graph asks the model, runs the tools it asks for, and never takes half a reply for a whole one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from graph.builder import MAX_GRAPHS, GraphBuilder
from graph.context import TurnContext
from graph.prompts import DEFAULT_SYSTEM_PROMPT
from graph.turn import BLOCKED_TEXT, STEP_LIMIT_RESULT, STEP_LIMIT_TEXT
from schemas.agent_message import AgentMessage, ToolCall, Usage
from schemas.errors import AgentInvocationError, TransitionRefused
from schemas.stream_event import StreamEvent
from schemas.tool import Tool, ToolResult
from tests.unit.graph.fakes import FakeModel, asks, says


def tool(name: str = "f", description: str = "") -> Tool:
    return Tool(name, description, {"type": "object", "properties": {}}, function=lambda: None)


class Run:
    """A run of the graph with everything it showed."""

    def __init__(self, model: FakeModel, tools: Sequence[Tool] = (), **context: Any) -> None:
        self.model = model
        self.shown: list[StreamEvent] = []
        self.ran: list[ToolCall] = []
        self.rounds: list[list[AgentMessage]] = []
        fields = {"run_tool": self._run_tool, "save_round": self._save_round, "emit": self.shown.append, **context}
        self.context = TurnContext(model=model, tools=tools, **fields)

    async def __call__(self, *messages: AnyMessage, limit: int = 10) -> dict[str, Any]:
        graph = GraphBuilder(context=self.context)()
        start: Any = {"messages": list(messages) or [HumanMessage("hi")]}
        return dict(await graph.ainvoke(start, {"recursion_limit": limit}, context=self.context))

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.shown if event.kind == "text")

    async def _run_tool(self, call: ToolCall) -> ToolResult:
        self.ran.append(call)
        return ToolResult(f"result of {call['id']}")

    async def _save_round(self, messages: Sequence[AgentMessage], usage: Usage | None) -> None:
        self.rounds.append(list(messages))


async def test_text_is_shown_and_kept() -> None:
    run = Run(FakeModel(says("a b")))

    state = await run()

    assert run.text == state["messages"][-1].content == "ab"
    assert state["outcome"] == "ok"


async def test_without_an_emitter_the_steps_go_to_langgraphs_custom_stream() -> None:
    context = TurnContext(model=FakeModel(says("a b")))
    start: Any = {"messages": [HumanMessage("hi")]}

    steps = [step async for step in GraphBuilder()().astream(start, context=context, stream_mode="custom")]

    assert steps == [StreamEvent("text", text="a"), StreamEvent("text", text="b")]


async def test_the_default_prompt_comes_first_only_if_the_caller_gave_none() -> None:
    default, own = FakeModel(says("x")), FakeModel(says("x"))

    await Run(default)()
    await Run(own)(SystemMessage("mine"), HumanMessage("hi"))

    assert default.prompts[0][0] == SystemMessage(DEFAULT_SYSTEM_PROMPT)
    assert [message.content for message in own.prompts[0]] == ["mine", "hi"]


async def test_parameters_go_with_every_call() -> None:
    model = FakeModel(asks(("f", "{}")), says("x"))

    await Run(model, [tool()], parameters={"temperature": 0.5})()

    assert model.options == [{"temperature": 0.5}] * 2


async def test_calls_run_and_their_round_is_saved_before_the_model_is_asked_again() -> None:
    run = Run(FakeModel(asks(("f", '{"x": 1}'), ("f", "")), says("done")), [tool()])

    state = await run()

    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "tool", "ai"]
    assert [call["args"] for call in run.ran] == [{"x": 1}, {}]
    assert [[message.role for message in messages] for messages in run.rounds] == [["assistant", "tool", "tool"]]
    notes = [(event.tool["id"], event.tool["status"]) for event in run.shown if event.tool]
    assert sorted(notes, key=lambda note: note[0]) == [
        ("id0", "started"),
        ("id0", "finished"),
        ("id1", "started"),
        ("id1", "finished"),
    ]
    assert run.shown[-1].text == "done"


async def test_calls_run_although_the_finish_reason_is_stop() -> None:
    run = Run(FakeModel(asks(("f", "{}"), reason="stop"), says("x")), [tool()])

    await run()

    assert len(run.ran) == 1


async def test_a_call_that_cannot_be_read_is_not_run_and_the_model_is_told_once() -> None:
    model = FakeModel(asks(("f", '{"x": y}'), ("f", "{}")), says("sorry"))
    run = Run(model, [tool()])

    state = await run()

    assert [call["id"] for call in run.ran] == ["id1"]
    assert "not valid JSON" in state["messages"][2].content
    assert run.text == "sorry"


async def test_a_second_call_that_cannot_be_read_is_a_failure() -> None:
    run = Run(FakeModel(asks(("f", '{"x":')), asks(("f", '{"x":'))), [tool()])

    with pytest.raises(AgentInvocationError) as caught:
        await run()

    assert caught.value.code == "invalid_tool_call"
    assert caught.value.retryable
    assert run.ran == []


async def test_a_third_round_with_an_unknown_tool_is_a_failure() -> None:
    run = Run(FakeModel(*[asks(("nope", "{}"))] * 3), [tool("f"), tool("g")])

    with pytest.raises(AgentInvocationError) as caught:
        await run()

    assert caught.value.code == "unknown_tool"
    assert len(run.rounds) == 2


async def test_calls_without_any_tool_are_not_an_empty_success() -> None:
    with pytest.raises(AgentInvocationError):
        await Run(FakeModel(*[asks(("f", "{}"))] * 3))()


async def test_call_ids_do_not_repeat_those_of_the_history() -> None:
    history: list[AnyMessage] = [
        HumanMessage("a"),
        AIMessage("", tool_calls=[{"id": "id0", "name": "f", "args": {}}]),
        ToolMessage("x", tool_call_id="id0"),
        AIMessage("b"),
        HumanMessage("c"),
    ]
    run = Run(FakeModel(asks(("f", "{}")), says("x")), [tool()])

    await run(*history)

    assert [call["id"] for call in run.ran] == ["id0-2"]


@pytest.mark.parametrize(("limit", "ran"), [(2, 0), (3, 0), (4, 1), (5, 1), (6, 2), (10, 4)])
async def test_at_the_step_limit_the_answer_ends_with_its_calls_closed(limit: int, ran: int) -> None:
    run = Run(FakeModel(*[asks(("f", "{}"))] * 9), [tool()])

    state = await run(limit=limit)

    assert state["outcome"] == "step_limit"
    assert len(run.ran) == ran
    *_, asked, closed, last = state["messages"]
    assert (closed.tool_call_id, closed.content) == (asked.tool_calls[0]["id"], STEP_LIMIT_RESULT)
    assert last.content == run.text == STEP_LIMIT_TEXT


async def test_a_filtered_answer_ends_as_blocked_with_a_sentence() -> None:
    run = Run(FakeModel(says("half", reason="content_filter")))

    state = await run()

    assert state["outcome"] == "blocked"
    assert state["messages"][-1].content == run.text == f"half\n\n{BLOCKED_TEXT}"


async def test_calls_of_a_filtered_reply_are_dropped() -> None:
    run = Run(FakeModel(asks(("f", "{}"), reason="content_filter")), [tool()])

    state = await run()

    assert run.ran == []
    assert state["messages"][-1].tool_calls == []


async def test_stop_without_text_is_an_empty_reply() -> None:
    state = await Run(FakeModel(says("")))()

    assert (state["messages"][-1].content, state["outcome"]) == ("", "ok")


@pytest.mark.parametrize("reason", ["tool_calls", "function_call", "length", "error", "insufficient_system_resource"])
async def test_nothing_with_another_finish_reason_is_a_failure(reason: str) -> None:
    with pytest.raises(AgentInvocationError):
        await Run(FakeModel(says("", reason=reason)))()


async def test_text_cut_by_the_token_limit_is_kept() -> None:
    state = await Run(FakeModel(says("half", reason="length")))()

    assert (state["messages"][-1].content, state["outcome"]) == ("half", "ok")


async def test_errors_that_are_not_a_tools_end_the_answer_untouched() -> None:
    refused = TransitionRefused()

    async def save_round(messages: Sequence[AgentMessage], usage: Usage | None) -> None:
        raise refused

    with pytest.raises(TransitionRefused) as caught:
        await Run(FakeModel(asks(("f", "{}"))), [tool()], save_round=save_round)()
    assert caught.value is refused


def test_the_same_tools_in_any_order_share_a_compiled_graph() -> None:
    assert GraphBuilder(tools=[tool("f"), tool("g")])() is GraphBuilder(tools=[tool("g"), tool("f")]).buildgraph()


def test_other_tools_get_another_graph() -> None:
    assert GraphBuilder(tools=[tool("f")])() is not GraphBuilder(tools=[tool("f", "described")])()


def test_a_graph_is_known_by_names_and_schemas_and_nothing_else() -> None:
    def secret() -> str:
        return "sk-secret"

    plain = tool("f")
    with_secret = Tool("f", "", plain.parameters, function=secret, timeout_s=9)

    assert GraphBuilder(tools=[plain]).tool_set == GraphBuilder(tools=[with_secret]).tool_set


def test_only_so_many_graphs_are_kept() -> None:
    first = GraphBuilder(tools=[tool("first_of_many")])()
    for number in range(MAX_GRAPHS):
        GraphBuilder(tools=[tool(f"filler_{number}")])()

    assert GraphBuilder(tools=[tool("first_of_many")])() is not first
