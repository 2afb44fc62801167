"""Answers with a LangGraph agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp

from graph.builder import GraphBuilder
from graph.context import TurnContext
from graph.llm import close_loop_models, loop_models, prepare_models
from graph.messages import agent_messages, to_langchain
from graph.state import AgentState
from handlers.base import BaseAgentHandler, timed_out, unexpected
from handlers.history import read_conversation
from handlers.open_calls import close_open_round
from handlers.tool_runner import ToolRunner
from schemas.agent_message import AgentMessage, ChatMessage, Usage
from schemas.agent_session import AgentSession
from schemas.errors import AgentInvocationError, ChatmillError
from schemas.stream_event import StreamEvent

#: Graph steps of a finished round: the model call, and the tools it asked for.
STEPS_PER_ROUND = 2
#: Graph steps of one model call: LangGraph counts before it looks whether anything is left to do.
LEAST_STEPS = 2


class LangGraphHandler(BaseAgentHandler):
    """The agent of graph/: a model that may call tools, round after round, until it has an answer."""

    continues: ClassVar[bool] = True

    async def astream_events(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """The steps of the answer as they happen. Close the generator to stop the model and the tools."""
        if images:
            raise AgentInvocationError("this agent cannot read images yet", code="bad_request", retryable=False)
        session = self.session
        deadline = asyncio.get_running_loop().time() + session.timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                conversation = await read_conversation(session, user_message, reply_to)
            async with aclosing(self._run(conversation, deadline)) as events:
                async for event in events:
                    yield event
        except ChatmillError:
            raise
        except TimeoutError as error:
            raise timed_out(session) from error
        except Exception as error:
            raise unexpected(error) from error

    async def astream(self, user_message: str) -> AsyncGenerator[tuple[str, Usage | None], None]:
        """The text of the answer as it comes; the last piece is empty and carries the usage."""
        async with aclosing(self.astream_events(user_message)) as events:
            async for event in events:
                if event.kind == "text":
                    yield event.text, None
                elif event.kind == "final":
                    yield "", event.usage

    def stream(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> Iterator[StreamEvent]:
        """The same steps for synchronous code, on an event loop of its own."""
        with asyncio.Runner() as runner:
            events = self.astream_events(user_message, images, reply_to)

            async def step() -> StreamEvent | None:
                return await anext(events, None)

            async def end() -> None:
                await events.aclose()
                await close_loop_models()

            try:
                while (event := runner.run(step())) is not None:
                    yield event
            finally:
                runner.run(end())

    def invoke(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> tuple[list[AgentMessage], Usage | None]:
        """The whole answer for synchronous code."""
        *_, final = self.stream(user_message, images, reply_to)
        return final.response or [], final.usage

    @classmethod
    def prepare(cls) -> None:
        prepare_models()

    @classmethod
    async def close_shared(cls) -> None:
        await close_loop_models()

    async def _run(self, conversation: list[ChatMessage], deadline: float) -> AsyncGenerator[StreamEvent, None]:
        session = self.session
        if session.model_target is None:
            raise AgentInvocationError("no model is configured for this session", code="bad_request", retryable=False)
        builder = GraphBuilder(tools=session.tools)
        user_texts = [message.content for message in conversation if message.role == "user"]
        events: asyncio.Queue[StreamEvent | None] = asyncio.Queue()
        runner = ToolRunner(session, user_texts, control_flow=(GraphBubbleUp,))
        context = TurnContext(
            model=loop_models().model(session.model_target, builder.tool_set),
            tools=session.tools,
            run_tool=runner.run,
            save_round=session.save_round,
            parameters=session.parameters.to_json(),
            emit=events.put_nowait,
            deadline=deadline,
        )

        async def answer() -> Mapping[str, Any]:
            async with asyncio.timeout_at(deadline):
                closed = await close_open_round(session, runner, events.put_nowait)
            known = [*conversation, *session.progress.messages, *closed]
            return await builder().ainvoke(
                cast("AgentState", {"messages": [to_langchain(message) for message in known]}),
                RunnableConfig(recursion_limit=_steps_left(session, session.progress.rounds + bool(closed))),
                context=context,
            )

        already = len(conversation) + len(session.progress.messages)
        graph = asyncio.create_task(answer())
        graph.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                yield event
            if graph.cancelled():  # nobody here did that: a tool has raised a CancelledError of its own
                raise AgentInvocationError("the agent was cancelled from within", code="agent_error")
            yield _final(graph.result(), already)
        finally:
            graph.cancel()
            await asyncio.gather(graph, return_exceptions=True)


def _steps_left(session: AgentSession, rounds: int) -> int:
    """The recursion limit of an answer that has some rounds behind it; the model may always be asked once more."""
    return max(session.recursion_limit - STEPS_PER_ROUND * rounds, LEAST_STEPS)


def _final(state: Mapping[str, Any], already: int) -> StreamEvent:
    """The last event: the messages that the answer has added to the conversation."""
    outcome = state.get("outcome")
    if outcome is None:
        raise AgentInvocationError("the agent ended without an answer", code="no_answer")
    return StreamEvent(
        "final",
        response=agent_messages(state["messages"][already:]),
        usage=state.get("usage"),
        outcome=outcome,
    )
