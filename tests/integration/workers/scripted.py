"""An agent that plays the script it is sent: the user's message is a JSON list of steps.

    ["text", "Hello"]        say it                      ["tool", {…}]     tell of a tool call
    ["touch", path]          make the file               ["until", path]   wait until there is the file
    ["raise", name]          fail in the named way       ["block", s]      hold up the event loop for s seconds
    ["ignore", path]         wait for the file, deaf to cancellation       ["history"]  say what was said before
    ["final", text]          end with this instead of what was said        ["nothing"]  end without an answer
    ["kill"]                 SIGKILL to the worker's own process       ["call", [name, {}]]  call a tool, say its result

An object of lists, `{"1": […], "else": […]}`, has a script for each attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from handlers.base import BaseAgentHandler
from handlers.tool_runner import ToolRunner
from schemas.agent_message import AgentMessage, ToolCall, Usage
from schemas.errors import AgentInvocationError
from schemas.stream_event import StreamEvent

PATH = f"{__name__}:ScriptedHandler"
#: How often a waiting script looks for its file.
LOOK_S = 0.005


class HomeMadeError(Exception):
    """An error of the agent's own."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "own": lambda: HomeMadeError("details that are nobody's business"),
    "busy": lambda: AgentInvocationError("the provider is busy", code="rate_limited", charged=False, retry_after=0),
    "useless": lambda: AgentInvocationError("too long", code="too_long", retryable=False),
    "again": lambda: AgentInvocationError("the provider failed", code="provider_error"),
}


def script(*steps: Any) -> str:
    """The message that makes a ScriptedHandler play these steps."""
    return json.dumps([list(step) if isinstance(step, tuple) else ["text", step] for step in steps])


def scripts(**by_attempt: Sequence[Any]) -> str:
    """The same with a script for each attempt: `scripts(a1=[…], otherwise=[…])`."""
    keys = {"otherwise": "else", "a1": "1", "a2": "2", "a3": "3"}
    return json.dumps({keys[name]: json.loads(script(*steps)) for name, steps in by_attempt.items()})


class ScriptedHandler(BaseAgentHandler):
    """Plays its message."""

    def invoke(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> tuple[list[AgentMessage], Usage | None]:
        raise NotImplementedError

    def astream(self, user_message: str) -> AsyncGenerator[tuple[str, Usage | None], None]:
        raise NotImplementedError

    async def astream_events(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        said: list[str] = []
        answer: str | None = None
        number = 0
        for name, *arguments in self._script(user_message):
            argument: Any = arguments[0] if arguments else None
            match name:
                case "text":
                    said.append(argument)
                    yield StreamEvent("text", text=argument)
                case "tool":
                    yield StreamEvent("tool", tool=argument)
                case "history":
                    history = await self.session.read_history()
                    said.append(" ".join(f"{m.role}:{m.content}" for m in history))
                    yield StreamEvent("text", text=said[-1])
                case "final":
                    answer = argument
                case "call":
                    number += 1
                    call = ToolCall(id=f"call_{number}", name=argument[0], args=argument[1])
                    said.append((await ToolRunner(self.session).run(call)).text)
                    yield StreamEvent("text", text=said[-1])
                case "nothing":
                    return
                case "raise":
                    raise ERRORS[argument]()
                case _:
                    await _act(name, argument)
        text = "".join(said) if answer is None else answer
        usage = Usage(prompt_tokens=1, completion_tokens=len(said), total_tokens=1 + len(said))
        yield StreamEvent("final", response=[AgentMessage.assistant(text)], usage=usage)

    def _script(self, user_message: str) -> list[Any]:
        played: Any = json.loads(user_message)
        if isinstance(played, dict):
            played = played.get(str(self.session.attempt), played.get("else"))
        assert isinstance(played, list)
        return played


async def _act(name: str, argument: Any) -> None:
    match name:
        case "touch":
            Path(argument).touch()  # noqa: ASYNC240 - a local file of the test
        case "until":
            await _file(Path(argument))
        case "block":
            time.sleep(argument)  # noqa: ASYNC251 - holding up the loop is what it is for
        case "ignore":
            while not Path(argument).exists():  # noqa: ASYNC240
                with contextlib.suppress(asyncio.CancelledError):
                    await _file(Path(argument))
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case _:
            raise AssertionError(f"no such step: {name}")


async def _file(path: Path) -> None:
    while not path.exists():  # noqa: ASYNC110, ASYNC240 - files are what a test in another process can make
        await asyncio.sleep(LOOK_S)
