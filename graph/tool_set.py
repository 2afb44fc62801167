"""Tools as a provider is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from schemas.tool import Tool


@dataclass(frozen=True, slots=True)
class ToolSet:
    """Some tools in the shape of chat completions, sorted by name: the same tools are the same set in any order."""

    names: tuple[str, ...]
    schemas: list[dict[str, Any]]
    #: Equal for equal names and schemas. It holds nothing else of the tools, and no secrets.
    key: bytes

    @classmethod
    def of(cls, tools: Sequence[Tool]) -> ToolSet:
        """The set of these tools."""
        schemas = [_schema(tool) for tool in sorted(tools, key=lambda tool: tool.name)]
        return cls(tuple(schema["function"]["name"] for schema in schemas), schemas, orjson.dumps(schemas))


def _schema(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
