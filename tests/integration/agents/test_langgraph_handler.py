"""The LangGraph handler against the demo model, over real HTTP, when all is well."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import pytest

from graph.llm import close_loop_models, loop_models
from graph.tool_set import ToolSet
from handlers.builtin_tools import BUILT_IN_TOOLS
from handlers.langgraph_handler import LangGraphHandler
from schemas.agent_message import AgentMessage, ChatMessage, Usage
from schemas.chat_job import Parameters
from schemas.errors import AgentInvocationError
from tests.demo_server import DemoServer
from tests.integration.agents.asking import SUM, ask, session, target


async def test_text_is_streamed_and_the_final_event_holds_all_of_it(demo: DemoServer) -> None:
    answer = await ask(session(demo), "[words=50]")

    assert answer.final.outcome == "ok"
    assert len([event for event in answer.events if event.kind == "text"]) == 50
    assert answer.response == [AgentMessage.assistant(answer.text)]


async def test_usage_is_summed_over_the_model_calls(demo: DemoServer) -> None:
    marker = uuid4().hex
    answer = await ask(session(demo), f"{SUM} {marker}")
    one, two = await demo.awaited(2, containing=marker)
    usage = answer.final.usage

    assert one["body"]["stream_options"] == two["body"]["stream_options"] == {"include_usage": True}
    assert usage is not None
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 20


async def test_a_tool_runs_and_its_result_reaches_the_model(demo: DemoServer) -> None:
    rounds: list[Sequence[AgentMessage]] = []

    async def save_round(messages: Sequence[AgentMessage], usage: Usage | None) -> None:
        rounds.append(messages)

    answer = await ask(session(demo, save_round=save_round), SUM)

    assert "408" in answer.text
    assert [message.role for message in answer.response] == ["assistant", "tool", "assistant"]
    assert rounds == [answer.response[:2]]
    started, finished = [event.tool for event in answer.events if event.tool]
    assert started is not None
    assert finished is not None
    assert (started["status"], started.get("args")) == ("started", {"expression": "12 * 34"})
    assert (finished["status"], finished.get("result"), finished.get("is_error")) == ("finished", "408", False)
    assert answer.response[1].tool_call_id == started["id"] == finished["id"]


async def test_the_model_is_sent_the_conversation_the_prompt_the_tools_and_the_parameters(demo: DemoServer) -> None:
    marker = uuid4().hex

    async def read_history(reply_to: str | None = None) -> list[ChatMessage]:
        assert reply_to == "some-id"
        return [ChatMessage(role="user", content="before"), ChatMessage(role="assistant", content="yes")]

    given = session(
        demo,
        system="Be brief.",
        language="de",
        read_history=read_history,
        parameters=Parameters(temperature=0.5, seed=7, max_tokens=900),
    )
    await ask(given, marker, reply_to="some-id")
    [request] = await demo.awaited(containing=marker)
    body = request["body"]

    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert body["messages"][0]["content"].startswith("Be brief.")
    assert body["messages"][-1]["content"] == marker
    assert [tool["function"]["name"] for tool in body["tools"]] == sorted(tool.name for tool in BUILT_IN_TOOLS)
    assert (body["temperature"], body["seed"], body["max_completion_tokens"]) == (0.5, 7, 900)


async def test_without_tools_none_are_sent(demo: DemoServer) -> None:
    marker = uuid4().hex
    await ask(session(demo, tools=()), marker)
    [request] = await demo.awaited(containing=marker)

    assert "tools" not in request["body"]


async def test_the_strictest_provider_takes_a_conversation_with_tools(demo: DemoServer) -> None:
    assert "408" in (await ask(session(demo, "demo-strict"), SUM)).text


async def test_several_rounds_are_kept_in_order(demo: DemoServer) -> None:
    answer = await ask(
        session(demo),
        '[say:First. ][call:calculator {"expression":"1+1"}][then]'
        '[say:Second. ][call:calculator {"expression":"2+2"}][then][say:Done.]',
    )

    assert answer.text == "First. Second. Done."
    assert answer.results == ["2", "4"]


async def test_search_reads_what_the_user_wrote_before(demo: DemoServer) -> None:
    async def read_history(reply_to: str | None = None) -> list[ChatMessage]:
        return [ChatMessage(role="user", content="the code word is heliotrope")]

    answer = await ask(session(demo, read_history=read_history), '[call:search_text {"query": "code word"}]')

    assert "heliotrope" in answer.results[0]


async def test_astream_gives_the_text_and_then_the_usage(demo: DemoServer) -> None:
    pieces = [piece async for piece in LangGraphHandler(session(demo)).astream("[words=3]")]

    assert "".join(text for text, _ in pieces) == "word1 word2 word3"
    assert [usage is None for _, usage in pieces] == [True, True, True, False]


def test_synchronous_code_can_ask_too(demo: DemoServer) -> None:
    handler = LangGraphHandler(session(demo))

    response, usage = handler.invoke(SUM)
    *_, final = handler.stream("[words=3]")

    assert "408" in response[-1].content
    assert usage is not None
    assert final.response == [AgentMessage.assistant("word1 word2 word3")]


async def test_images_are_refused_and_not_ignored(demo: DemoServer) -> None:
    with pytest.raises(AgentInvocationError, match="images") as caught:
        await anext(LangGraphHandler(session(demo)).astream_events("x", images=["data:"]))
    assert not caught.value.retryable


async def test_a_session_without_a_model_is_a_failure(demo: DemoServer) -> None:
    answer = await ask(session(demo, model_target=None), "x")

    assert answer.error is not None
    assert not answer.error.retryable


async def test_a_model_is_made_once_and_its_connection_is_used_again(demo: DemoServer) -> None:
    tools = ToolSet.of(BUILT_IN_TOOLS)
    await ask(session(demo), "hello")
    model = loop_models().model(target(demo), tools)
    await ask(session(demo), "hello")

    assert loop_models().model(target(demo), tools) is model
    assert loop_models().model(target(demo, "demo-strict"), tools) is not model
    assert loop_models().model(target(demo), ToolSet.of(())) is not model
    assert len(loop_models()._http._transport._pool.connections) == 1  # type: ignore[attr-defined] # no public way


def test_every_event_loop_has_connections_of_its_own(demo: DemoServer) -> None:
    async def one() -> str:
        try:
            return (await ask(session(demo), "[words=2]")).text
        finally:
            await close_loop_models()

    assert [asyncio.run(one()) for _ in range(2)] == ["word1 word2"] * 2


async def test_many_answers_at_once_do_not_mix(demo: DemoServer) -> None:
    answers = await asyncio.gather(*[ask(session(demo), f"[say:answer {number}]") for number in range(50)])

    assert [answer.text for answer in answers] == [f"answer {number}" for number in range(50)]
