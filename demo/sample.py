"""The smallest value that a JSON schema takes, for forced tool calls and structured output."""

from __future__ import annotations

from typing import Any

_PLAIN: dict[str, Any] = {"integer": 1, "number": 1, "boolean": False, "array": [], "null": None}

#: Deeper than any sane schema; a schema that refers to itself ends here.
_DEPTH = 12


def sample(schema: dict[str, Any], text: str) -> Any:
    """A value for the schema: required properties only, the first of several choices, strings are `text`."""
    return _sample(schema, text, schema.get("$defs") or {}, _DEPTH)


def _sample(schema: Any, text: str, definitions: dict[str, Any], depth: int) -> Any:
    if not isinstance(schema, dict) or depth == 0:
        return None
    if "$ref" in schema:
        return _sample(definitions.get(str(schema["$ref"]).removeprefix("#/$defs/")), text, definitions, depth - 1)
    for choices in ("anyOf", "oneOf", "allOf"):
        if schema.get(choices):
            return _sample(schema[choices][0], text, definitions, depth - 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("type") == "object":
        properties = schema.get("properties") or {}
        return {
            name: _sample(properties.get(name, {}), text, definitions, depth - 1)
            for name in schema.get("required") or ()
        }
    return _PLAIN.get(str(schema.get("type")), text)
