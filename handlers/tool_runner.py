"""Runs one tool call: checks its arguments, gives it a thread and a deadline, and turns what comes back into text."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from handlers.arguments import checked_arguments
from handlers.threads import ThreadLimit
from schemas.agent_message import ToolCall
from schemas.agent_session import AgentSession
from schemas.border_text import clean_text
from schemas.capped_text import capped_text
from schemas.errors import AgentInvocationError, StorageUnavailable, TransitionRefused
from schemas.progress import OpenCall
from schemas.tool import Tool, ToolContext, ToolResult

#: Characters of a result that the model is given: a page of everything, not a book of one thing.
MAX_RESULT = 32_000
MAX_ERROR = 2_000
#: Seconds that a stopped call still gets to record what it has returned.
RECORD_S = 2.0

#: The threads of all synchronous tools of the process: threads are the process's, whichever job asks for one.
TOOL_THREADS = ThreadLimit(64)

#: Errors that are not a tool's: the attempt has lost its job, or a tool ends the answer on purpose.
_NOT_THE_TOOLS = (TransitionRefused, StorageUnavailable, AgentInvocationError)


class ToolRunner:
    """Runs the tool calls of one answer.

    What a tool raises becomes an error for the model. Raised as they are: a cancellation, what `control_flow` names,
    and errors that concern the attempt as a whole.
    """

    def __init__(
        self,
        session: AgentSession,
        user_texts: Sequence[str] = (),
        *,
        control_flow: tuple[type[Exception], ...] = (),
        threads: ThreadLimit = TOOL_THREADS,
    ) -> None:
        self._session = session
        self._tools = {tool.name: tool for tool in session.tools}
        self._control_flow: tuple[type[Exception], ...] = (*_NOT_THE_TOOLS, *control_flow)
        self._threads = threads
        self._context = ToolContext(
            session_id=session.session_id,
            tenant=session.tenant,
            user_id=session.user_id,
            job_id=session.job_id,
            user_texts=tuple(user_texts),
        )

    async def run(self, call: ToolCall) -> ToolResult:
        """The result of one call. A call that writes is recorded before it runs, and its result after it has run."""
        tool = self._tools.get(call["name"])
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return ToolResult(capped_text(f"There is no tool {call['name']!r}; known are: {known}", MAX_ERROR), True)
        try:
            arguments = checked_arguments(tool.parameters, call["args"])
        except ValueError as error:
            return ToolResult(f"Not run, the arguments are wrong: {error}", is_error=True)
        if tool.effect != "write":
            return await self._run(tool, arguments)
        key = await self._session.start_tool_call(tool.name, arguments, call["id"], tool.effect)
        return await self._run_recorded(tool, arguments, key)

    async def repeat(self, call: OpenCall) -> ToolResult | None:
        """Make a call of unknown outcome again, under the same key; None if its tool does not take one."""
        tool = self._tools.get(call.name)
        if tool is None or not tool.takes_idempotency_key:
            return None
        try:
            arguments = checked_arguments(tool.parameters, call.args)
        except ValueError:
            return None  # the tool has changed since
        return await self._run_recorded(tool, arguments, call.key)

    async def _run_recorded(self, tool: Tool, arguments: dict[str, Any], key: str) -> ToolResult:
        result = await self._run(tool, arguments, key)
        await _to_the_end(self._session.finish_tool_call(key, result))
        return result

    async def _run(self, tool: Tool, arguments: dict[str, Any], key: str | None = None) -> ToolResult:
        if tool.wants_context:
            arguments = {**arguments, "context": replace(self._context, idempotency_key=key)}
        limit = asyncio.timeout(tool.timeout_s)
        try:
            async with limit:
                value = await self._call(partial(tool.function, **arguments), tool.function)
            return ToolResult(capped_text(as_text(value), MAX_RESULT))
        except self._control_flow:
            raise
        except Exception as error:  # noqa: BLE001 - a tool may raise anything, and the answer goes on
            if limit.expired() and isinstance(error, TimeoutError):
                unknown = "" if tool.effect != "write" else "; whether it took effect is not known"
                return ToolResult(f"The tool did not finish within {tool.timeout_s:g} s{unknown}.", is_error=True)
            return ToolResult(capped_text(clean_text(f"{type(error).__name__}: {error}"), MAX_ERROR), is_error=True)

    async def _call(self, bound: Callable[[], Any], function: Callable[..., Any]) -> Any:
        if _is_async(function):
            value = bound()
        else:
            value = await self._threads.call(bound)
        return await value if inspect.isawaitable(value) else value


def as_text(value: Any) -> str:
    """What a tool returned, as text a model can read: strings as they are, everything else as JSON if it is some."""
    if not isinstance(value, str):
        if value is None:
            return "(no output)"
        try:
            value = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS, default=str).decode()
        except TypeError:
            value = str(value)
    return clean_text(value) or "(no output)"


async def _to_the_end(recording: Coroutine[Any, Any, None]) -> None:
    """Record what has happened even if the attempt is stopped meanwhile: otherwise nobody would know of it."""
    task = asyncio.ensure_future(recording)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=RECORD_S)
        task.cancel()
        raise


def _is_async(function: Callable[..., Any] | Callable[..., Awaitable[Any]]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
