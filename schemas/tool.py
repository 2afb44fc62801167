"""A tool an agent may call: a plain callable with a name, a schema and what it does to the world."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

#: `pure` may run any number of times, `read` looks at the world, `write` changes it and is never repeated unasked.
ToolEffect = Literal["pure", "read", "write"]

#: Names of the tools that ship with chatmill, for those who must know them without loading any.
BUILTIN_TOOLS = ("current_time", "calculator", "convert_units", "search_text")

DEFAULT_TOOL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know of the conversation it is called from; it is the tool's first argument if it asks for it."""

    session_id: str = ""
    tenant: str = "default"
    user_id: str | None = None
    job_id: str = ""
    #: The user's messages so far, oldest first, the current one last.
    user_texts: Sequence[str] = ()
    #: Stands for this one call of a tool that writes: the same key again means the same call again. None for others.
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `function` is sync or async and gets the arguments by name; what it returns is turned into text.

    With `wants_context` it also gets `context`, a ToolContext. An exception it raises becomes an error message for
    its own call; other calls and the answer go on.
    """

    name: str
    description: str
    #: JSON Schema of the arguments: an object.
    parameters: dict[str, Any]
    function: Callable[..., Any] | Callable[..., Awaitable[Any]]
    #: What calling it does; a tool that does not say is taken to write.
    effect: ToolEffect = "write"
    timeout_s: float = DEFAULT_TOOL_TIMEOUT_S
    wants_context: bool = False
    #: It recognises a call that is repeated with the same `context.idempotency_key`, and does nothing twice. Only for a
    #: tool that writes; it needs `wants_context`.
    takes_idempotency_key: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What one call gave, as the model reads it."""

    text: str
    is_error: bool = False
