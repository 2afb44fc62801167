"""Asking the LangGraph handler, and looking at what it answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from handlers.builtin_tools import BUILT_IN_TOOLS
from handlers.langgraph_handler import LangGraphHandler
from schemas.agent_message import AgentMessage, joined_text
from schemas.agent_session import AgentSession
from schemas.errors import AgentInvocationError
from schemas.models import ModelTarget
from schemas.stream_event import StreamEvent
from schemas.tool import Tool, ToolEffect
from tests.demo_server import DemoServer

SUM = "What is 12 * 34?"


def target(demo: DemoServer, model: str = "demo", **fields: Any) -> ModelTarget:
    return ModelTarget(name=model, model=model, base_url=demo.base_url, api_key=SecretStr("sk-secret"), **fields)


def session(demo: DemoServer, model: str = "demo", /, **fields: Any) -> AgentSession:
    return AgentSession(
        session_id="s", **{"model_target": target(demo, model), "tools": BUILT_IN_TOOLS, "timeout_s": 20.0, **fields}
    )


@dataclass
class Answer:
    """The events of an answer, or what they ended in."""

    events: list[StreamEvent] = field(default_factory=list)
    error: AgentInvocationError | None = None

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if event.kind == "text")

    @property
    def final(self) -> StreamEvent:
        assert self.error is None, self.error
        assert [event.kind for event in self.events].count("final") == 1
        return self.events[-1]

    @property
    def response(self) -> list[AgentMessage]:
        return self.final.response or []

    @property
    def results(self) -> list[str]:
        return [message.content for message in self.response if message.role == "tool"]


async def ask(given: AgentSession, text: str, *, reply_to: str | None = None) -> Answer:
    answer = Answer()
    try:
        async with aclosing(LangGraphHandler(given).astream_events(text, reply_to=reply_to)) as events:
            async for event in events:
                answer.events.append(event)
    except AgentInvocationError as error:
        answer.error = error
    else:
        assert joined_text(answer.response) == answer.text
        assert answer.response[-1].role == "assistant"
    return answer


def a_tool(
    function: Callable[..., Any], name: str = "probe", *, effect: ToolEffect = "pure", timeout_s: float = 5.0
) -> Tool:
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    return Tool(name, "", parameters, function=function, effect=effect, timeout_s=timeout_s)
