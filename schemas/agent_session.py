"""What a handler is given: a session's settings with the job's overrides, and its ways to storage as callables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from schemas.agent_message import AgentMessage, ChatMessage, Usage
from schemas.chat_job import Parameters
from schemas.ids import new_id
from schemas.models import ModelTarget
from schemas.progress import NO_PROGRESS, Progress
from schemas.tool import Tool, ToolResult


class HistoryReader(Protocol):
    """Reads the messages before the one to be answered, oldest first; `reply_to` names a message to stop at."""

    def __call__(self, reply_to: str | None = None) -> Awaitable[list[ChatMessage]]: ...


async def _no_history(reply_to: str | None = None) -> list[ChatMessage]:
    return []


async def _keep_nothing(round_messages: Sequence[AgentMessage], usage: Usage | None) -> None:
    return None


async def _start_unrecorded(name: str, args: dict[str, Any], call_id: str, effect: str) -> str:
    return new_id()


async def _finish_unrecorded(key: str, result: ToolResult) -> None:
    return None


@dataclass(frozen=True, slots=True)
class AgentSession:
    """The frozen view of a session that one attempt works with.

    The callables are bound to the attempt: what they write is guarded, and they raise TransitionRefused once it has
    lost its job.
    """

    session_id: str
    tenant: str = "default"
    user_id: str | None = None
    job_id: str = ""
    #: Counts from 1; 0 outside a job.
    attempt: int = 0
    agent_framework: str = "langgraph"
    #: The caller's system prompt; None means the default one.
    system: str | None = None
    language: str | None = None
    parameters: Parameters = field(default_factory=Parameters)
    #: Where `model` is called; resolved from the settings by whoever makes the session.
    model_target: ModelTarget | None = None
    #: The tools this job may use, already narrowed to the names it allows.
    tools: tuple[Tool, ...] = ()
    #: Seconds one attempt may take.
    timeout_s: float = 120.0
    #: Graph steps (a model call and the tools it asks for are two) before an answer ends as `step_limit`.
    recursion_limit: int = 10
    read_history: HistoryReader = _no_history
    #: What earlier attempts have done; nothing for a handler that does not continue.
    progress: Progress = NO_PROGRESS
    #: Saves one finished tool round, the assistant message and all its results, and the tokens its model call took.
    save_round: Callable[[Sequence[AgentMessage], Usage | None], Awaitable[None]] = _keep_nothing
    #: Records that a tool call is about to run: (name, args, call id, effect). Returns the key it is recorded under.
    #: If it raises, the call must not run.
    start_tool_call: Callable[[str, dict[str, Any], str, str], Awaitable[str]] = _start_unrecorded
    #: Records what the call under this key has returned.
    finish_tool_call: Callable[[str, ToolResult], Coroutine[Any, Any, None]] = _finish_unrecorded
