"""What one answer needs beside the conversation; it goes in through LangGraph's runtime context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable

from graph.prompts import DEFAULT_SYSTEM_PROMPT
from schemas.agent_message import AgentMessage, ToolCall, Usage
from schemas.stream_event import StreamEvent
from schemas.tool import Tool, ToolResult


async def _no_tools(call: ToolCall) -> ToolResult:
    return ToolResult("no tools are available", is_error=True)


async def _keep_nothing(round_messages: Sequence[AgentMessage], usage: Usage | None) -> None:
    return None


@dataclass(frozen=True, slots=True)
class TurnContext:
    """Everything that belongs to one answer and must not be compiled into a graph that others share."""

    #: The chat model with its tools bound; see graph.llm.
    model: Runnable[LanguageModelInput, AIMessage]
    tools: Sequence[Tool] = ()
    #: Runs one call, or says that there is no such tool; what it raises ends the answer.
    run_tool: Callable[[ToolCall], Awaitable[ToolResult]] = _no_tools
    #: Told of each finished tool round: the assistant message and all its results, and the tokens its model call took.
    save_round: Callable[[Sequence[AgentMessage], Usage | None], Awaitable[None]] = _keep_nothing
    #: Put first if the conversation has no system message of its own.
    system_prompt: str = DEFAULT_SYSTEM_PROMPT
    #: Sampling parameters of every model call of this answer.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: Shows a step of the answer to whoever reads it. None sends it to LangGraph's custom stream, which costs a task, a
    #: system call and two turns of the event loop for each.
    emit: Callable[[StreamEvent], None] | None = None
    #: When the answer must be there, in the event loop's time; None means no limit.
    deadline: float | None = None
