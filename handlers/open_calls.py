"""The round in which an earlier attempt was cut off: what its calls came to, without asking the model again.

The model is not asked to repeat that round: the second time it might phrase a call otherwise, and a write would happen
twice. Calls that change nothing are not remembered; the model asks for them again if it still needs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from graph.tool_notes import finished_note, started_note
from handlers.tool_runner import ToolRunner
from schemas.agent_message import AgentMessage
from schemas.agent_session import AgentSession
from schemas.progress import IN_DOUBT, OpenCall
from schemas.stream_event import StreamEvent
from schemas.tool import ToolResult

#: Seconds that calls get to end after another of them has ended the attempt.
CANCEL_S = 2.0


async def close_open_round(
    session: AgentSession, runner: ToolRunner, emit: Callable[[StreamEvent], None]
) -> list[AgentMessage]:
    """The messages of the round that was cut off, every call with a result, after they have been saved; or none.

    A call whose result is known has that one. One whose outcome is unknown is made again, under the same key, if its
    tool takes an idempotency key; else the model is told. The calls are shown by `emit`.
    """
    open_calls = session.progress.open_calls
    if not open_calls:
        return []
    results = await _all(session, runner, emit)
    calls = [call.asked for call in open_calls]
    messages = [
        AgentMessage.assistant("", calls),
        *(
            AgentMessage(role="tool", content=result.text, tool_call_id=call["id"])
            for call, result in zip(calls, results, strict=True)
        ),
    ]
    await session.save_round(messages, None)
    return messages


async def _all(session: AgentSession, runner: ToolRunner, emit: Callable[[StreamEvent], None]) -> Sequence[ToolResult]:
    async def close(call: OpenCall) -> ToolResult:
        asked = call.asked
        emit(StreamEvent("tool", tool=started_note(asked)))
        if call.result is not None:
            result = ToolResult(call.result, call.is_error)
        else:
            result = await runner.repeat(call) or ToolResult(IN_DOUBT, is_error=True)
        emit(StreamEvent("tool", tool=finished_note(asked, result)))
        return result

    tasks = [asyncio.ensure_future(close(call)) for call in session.progress.open_calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=CANCEL_S)
