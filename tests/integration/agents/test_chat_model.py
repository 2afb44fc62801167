"""The chat model reads a stream as ChatOpenAI does, chunk for chunk, except where ChatOpenAI would be wrong."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import openai
import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, LLMResult
from langchain_openai import ChatOpenAI

from demo import fault_tools
from demo.models import ALL_MODELS
from graph.chat_model import ChatModel
from graph.tool_set import ToolSet
from handlers.builtin_tools import BUILT_IN_TOOLS
from tests.demo_server import DemoServer

TOOLS = ToolSet.of(BUILT_IN_TOOLS).schemas
HELLO, SUM = "hello [seconds=0.01]", "What is 12 * 34? [seconds=0.01]"
TOOL_FAULTS = {fault.name for fault in fault_tools.FAULTS}

#: Where ChatOpenAI takes a stream for whole that is cut or empty; here it raises.
LOST_BY_PARENT = {"eof", "eof-whole-text", "eof-in-event", "only-role", "only-done", "zero-bytes", "html"}
LOST_BY_PARENT |= {"json-not-stream", "json-error-200"}
#: Where ChatOpenAI raises, waits or loses something that can be understood.
UNDERSTOOD_HERE = {"comments", "args-object", "refusal", "error-event", "silence-after-finish", "retry-lines"}


MakeModel = Callable[..., ChatOpenAI]


@pytest.fixture
async def make_model(demo: DemoServer) -> AsyncIterator[MakeModel]:
    """Makes models that are alike in all but their class; each has a client of its own, closed at the end."""
    async with AsyncExitStack() as clients:

        def make(kind: type[ChatOpenAI], name: str, **fields: Any) -> ChatOpenAI:
            # Without certificates, which take longer to load than a test to run.
            client = openai.DefaultAsyncHttpxClient(timeout=0.3, verify=False)
            clients.push_async_callback(client.aclose)
            return kind(
                model=name,
                base_url=demo.base_url,
                api_key="k",  # type: ignore[arg-type] # pydantic makes the secret of it
                http_async_client=client,
                max_retries=0,
                timeout=0.3,
                stream_usage=True,
                use_responses_api=False,
                stream_chunk_timeout=None,
                **fields,
            )

        yield make


async def chunks_of(model: ChatOpenAI, text: str) -> tuple[list[dict[str, Any]], Exception | None]:
    """What came, chunks that carry nothing left out, and what it ended in."""
    came: list[ChatGenerationChunk] = []
    error = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the client library warns of what it does not expect in a chunk
            async for chunk in model._astream([HumanMessage(text)], tools=TOOLS):
                came.append(chunk)  # noqa: PERF401 - what came before the error counts
    except Exception as caught:  # noqa: BLE001 - whatever it is, it is compared
        error = caught
    return [chunk.model_dump() for chunk in came if carries_something(chunk)], error


def carries_something(chunk: ChatGenerationChunk) -> bool:
    message = chunk.message
    assert isinstance(message, AIMessageChunk)
    fields = (message.content, message.tool_call_chunks, message.usage_metadata, message.additional_kwargs)
    return any(fields) or bool(chunk.generation_info)


@pytest.mark.parametrize("name", [model.name for model in ALL_MODELS if model.name != "demo-slow"])
async def test_chunks_equal_the_parents(make_model: MakeModel, name: str) -> None:
    fault = name.removeprefix("demo-fault-")
    text = SUM if fault in TOOL_FAULTS or fault == name else HELLO

    ours, our_error = await chunks_of(make_model(ChatModel, name, silence_s=0.3), text)
    theirs, their_error = await chunks_of(make_model(ChatOpenAI, name), text)

    if fault in LOST_BY_PARENT:
        assert our_error is not None
        assert their_error is None
        assert ours == theirs
    elif fault in UNDERSTOOD_HERE:
        assert (ours, our_error) != (theirs, their_error)
    else:
        assert ours == theirs
        assert type(our_error) is type(their_error) or (our_error is not None and their_error is not None)


async def test_streaming_without_callbacks_gives_what_streaming_with_them_gives(make_model: MakeModel) -> None:
    class Listener(AsyncCallbackHandler):
        tokens = 0
        result: LLMResult | None = None

        async def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
            self.tokens += 1

        async def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
            self.result = response

    listener = Listener()
    model = make_model(ChatModel, "demo").bind_tools(TOOLS)

    async def messages(config: Any) -> list[dict[str, Any]]:
        chunks = [chunk async for chunk in model.astream([HumanMessage(SUM)], config)]
        return [chunk.model_dump(exclude={"id"}) for chunk in chunks]

    assert await messages({}) == await messages({"callbacks": [listener]})
    assert listener.tokens > 0
    assert listener.result is not None


async def test_a_request_the_parent_must_make_is_left_to_it(demo: DemoServer, make_model: MakeModel) -> None:
    marker = uuid4().hex
    model = make_model(ChatModel, "demo", extra_body={"user": marker})

    text = "".join([str(chunk.content) async for chunk in model.astream("[words=3]")])

    assert text == "word1 word2 word3"
    assert await demo.awaited(containing=marker)


async def test_the_model_also_answers_in_one_go(make_model: MakeModel) -> None:
    reply = await make_model(ChatModel, "demo").ainvoke([HumanMessage("[words=3]")])

    assert reply.content == "word1 word2 word3"


@pytest.mark.parametrize(
    "name", ["demo", "demo-strict", "demo-fault-refuses-null-content", "demo-fault-refuses-empty-content"]
)
async def test_a_turn_of_calls_alone_is_sent_in_a_shape_every_server_takes(make_model: MakeModel, name: str) -> None:
    call = {"id": "a", "name": "calculator", "args": {}}
    conversation = [HumanMessage("hello"), AIMessage("", tool_calls=[call]), ToolMessage("x", tool_call_id="a")]

    assert [chunk async for chunk in make_model(ChatModel, name).astream(conversation)]
