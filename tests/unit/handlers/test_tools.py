"""The tool registry refuses at start what would fail at work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from handlers.tools import ToolRegistry, build_registry, load_tools
from schemas.errors import ConfigurationError, InvalidRequest
from schemas.tool import BUILTIN_TOOLS
from tests.unit.handlers.plugin import ONE, THREE, TWO

PLUGIN = "tests.unit.handlers.plugin"


def test_none_selects_every_tool_and_an_empty_list_none() -> None:
    registry = ToolRegistry([ONE, TWO, THREE])

    assert registry.select() == (ONE, TWO, THREE)
    assert registry.select([]) == ()


def test_tools_are_selected_by_name_each_once() -> None:
    assert ToolRegistry([ONE, TWO, THREE]).select(["three", "one", "three"]) == (THREE, ONE)


def test_a_name_nobody_registered_is_a_fault_of_the_request() -> None:
    with pytest.raises(InvalidRequest, match="known are: one") as caught:
        ToolRegistry([ONE]).select(["nope"])
    assert caught.value.field == "tools"


def test_two_tools_of_one_name_fail_at_start() -> None:
    with pytest.raises(ConfigurationError, match="two tools are named 'one'"):
        ToolRegistry([ONE, ONE])


@pytest.mark.parametrize(
    "change",
    [
        {"name": "with space"},
        {"name": ""},
        {"name": "x" * 65},
        {"parameters": {}},
        {"parameters": {"type": "array"}},
        {"effect": "destroys"},
        {"timeout_s": 0},
        {"takes_idempotency_key": True, "effect": "write"},
        {"takes_idempotency_key": True, "effect": "read", "wants_context": True},
    ],
)
def test_a_tool_no_provider_would_take_fails_at_start(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ToolRegistry([replace(ONE, **change)])


@pytest.mark.parametrize("name", ["ONE", "make_one"])
def test_a_path_names_a_tool_or_a_function_that_makes_it(name: str) -> None:
    assert load_tools({"one": f"{PLUGIN}:{name}"}) == [ONE]


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        (f"{PLUGIN}:NOT_A_TOOL", "gives a int"),
        (f"{PLUGIN}:SEVERAL", "gives a list"),
        (f"{PLUGIN}:TWO", "is named 'two'"),
        (f"{PLUGIN}:break_down", "no database"),
        (f"{PLUGIN}:nothing", "after the colon"),
        ("nowhere:tool", "install it"),
        ("nowhere", "colon"),
    ],
)
def test_a_path_that_gives_no_tool_of_that_name_is_said_in_one_line(path: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy) as caught:
        load_tools({"one": path})
    assert str(caught.value).startswith("tools.one: ")
    assert "\n" not in str(caught.value)


def test_the_users_tools_stand_beside_those_that_ship_with_chatmill() -> None:
    assert build_registry({"two": f"{PLUGIN}:TWO"}).names == [*BUILTIN_TOOLS, "two"]
