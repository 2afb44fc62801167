"""Checks a tool call's arguments against the tool's schema, as far as a wrong call can be told from a right one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def checked_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, whole numbers such as 3.0 made integers where the schema wants them.

    Looks at the names, types and enums of the first level only; tools check the rest. Raises ValueError that names the
    first wrong argument and what it should be.
    """
    properties: Mapping[str, Any] = schema.get("properties") or {}
    missing = [name for name in schema.get("required") or () if name not in arguments]
    if missing:
        raise ValueError(f"{missing[0]!r} is missing")
    if not schema.get("additionalProperties"):
        unknown = [name for name in arguments if name not in properties]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not known; known are: {', '.join(properties) or 'none'}")
    return {name: _checked(name, value, properties.get(name)) for name, value in arguments.items()}


def _checked(name: str, value: Any, schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return value
    if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        raise ValueError(f"{name!r} must be one of {', '.join(map(repr, schema['enum']))}")
    wanted = schema.get("type")
    if wanted is None:
        return value
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    if "integer" in names and isinstance(value, float) and value.is_integer():
        return int(value)
    if not any(_is_a(value, type_name) for type_name in names):
        raise ValueError(f"{name!r} must be {' or '.join(names)}")
    return value


def _is_a(value: Any, type_name: str) -> bool:
    if isinstance(value, bool):
        return type_name == "boolean"
    # A type this does not know is left to the tool.
    return isinstance(value, _TYPES.get(type_name, (object,)))
