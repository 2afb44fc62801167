"""The tools agents may call, by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from handlers.builtin_tools import BUILT_IN_TOOLS
from handlers.dotted_path import load_object
from schemas.errors import ConfigurationError, InvalidRequest
from schemas.tool import Tool, ToolEffect

#: What OpenAI takes as a function's name.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolRegistry:
    """All tools of a worker. A wrong or repeated one is a ConfigurationError when it is registered: at start."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            self.register(tool)

    @property
    def names(self) -> list[str]:
        return list(self._tools)

    def register(self, tool: Tool) -> None:
        """Add a tool. Raises ConfigurationError if its name is taken or no provider would accept it."""
        if not _NAME.fullmatch(tool.name):
            raise ConfigurationError(f"the tool name {tool.name!r} must be 1 to 64 letters, digits, _ or -; rename it")
        if tool.name in self._tools:
            raise ConfigurationError(f"two tools are named {tool.name!r}; rename one of them")
        if tool.parameters.get("type") != "object":
            raise ConfigurationError(
                f"the parameters of the tool {tool.name!r} must be a JSON Schema of type object; wrap them in one"
            )
        if tool.effect not in get_args(ToolEffect):
            raise ConfigurationError(f"the effect of the tool {tool.name!r} must be one of pure, read and write")
        if tool.takes_idempotency_key and not (tool.wants_context and tool.effect == "write"):
            raise ConfigurationError(
                f"the tool {tool.name!r} takes an idempotency key, so its effect must be write and wants_context True"
            )
        if tool.timeout_s <= 0:
            raise ConfigurationError(f"the timeout_s of the tool {tool.name!r} must be positive")
        self._tools[tool.name] = tool

    def select(self, names: Sequence[str] | None = None) -> tuple[Tool, ...]:
        """The named tools in the order named, each once; None means all.

        Raises InvalidRequest if a name is not registered.
        """
        if names is None:
            return tuple(self._tools.values())
        for name in names:
            if name not in self._tools:
                known = ", ".join(self._tools) or "none"
                raise InvalidRequest(f"there is no tool {name!r}; known are: {known}", field="tools")
        return tuple(self._tools[name] for name in dict.fromkeys(names))


def load_tools(paths: Mapping[str, str]) -> list[Tool]:
    """The user's own tools: under each name the dotted path of a Tool, or of a function that returns one.

    Raises ConfigurationError, in one line, for anything else, and for a tool that calls itself otherwise: the gateway
    knows the names only, and checks requests by them.
    """
    return [_tool_at(name, path) for name, path in paths.items()]


def build_registry(paths: Mapping[str, str] | None = None) -> ToolRegistry:
    """The tools that ship with chatmill and the user's own. Raises ConfigurationError."""
    return ToolRegistry([*BUILT_IN_TOOLS, *load_tools(paths or {})])


def _tool_at(name: str, path: str) -> Tool:
    setting = f"tools.{name}"
    found = load_object(path, setting=setting)
    if callable(found):
        try:
            found = found()
        except Exception as error:
            raise ConfigurationError(
                f"{setting}: calling {path!r} failed with {type(error).__name__}: {error}; correct that function"
            ) from error
    if not isinstance(found, Tool):
        raise ConfigurationError(f"{setting}: {path!r} gives a {type(found).__name__}, not a schemas.tool.Tool")
    if found.name != name:
        raise ConfigurationError(f"{setting}: the tool at {path!r} is named {found.name!r}; use one name for both")
    return found
