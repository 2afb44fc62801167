"""Wrong arguments are told to the model, not to the tool."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.arguments import checked_arguments


def schema(required: list[str] | None = None, more: Any = None, **properties: Any) -> dict[str, Any]:
    made = {"type": "object", "properties": properties, "required": required or []}
    return made if more is None else {**made, "additionalProperties": more}


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("string", "x"),
        ("number", 1),
        ("number", 1.5),
        ("integer", 3),
        ("boolean", True),
        ("array", []),
        ("object", {}),
        ("null", None),
        (["string", "null"], None),
        ("date-time", "anything"),
    ],
)
def test_values_of_the_right_type_pass(type_name: Any, value: Any) -> None:
    assert checked_arguments(schema(x={"type": type_name}), {"x": value}) == {"x": value}


@pytest.mark.parametrize(
    ("type_name", "value"),
    [("string", 1), ("number", "1"), ("number", True), ("integer", 1.5), ("boolean", 0), (["string", "null"], 5)],
)
def test_values_of_another_type_are_refused_by_name(type_name: Any, value: Any) -> None:
    with pytest.raises(ValueError, match="'x' must be"):
        checked_arguments(schema(x={"type": type_name}), {"x": value})


def test_a_whole_number_written_as_a_float_is_an_integer() -> None:
    arguments = checked_arguments(schema(x={"type": "integer"}), {"x": 3.0})

    assert type(arguments["x"]) is int


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(ValueError, match="'x' is missing"):
        checked_arguments(schema(["x"], x={"type": "string"}), {})


def test_an_unknown_argument_is_refused_unless_the_schema_takes_more() -> None:
    with pytest.raises(ValueError, match="'y' is not known; known are: x"):
        checked_arguments(schema(x={}), {"y": 1})
    assert checked_arguments(schema(more=True, x={}), {"y": 1}) == {"y": 1}


def test_a_value_outside_an_enum_is_refused() -> None:
    with pytest.raises(ValueError, match="one of 'a', 'b'"):
        checked_arguments(schema(x={"enum": ["a", "b"]}), {"x": "c"})
