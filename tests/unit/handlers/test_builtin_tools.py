"""The tools that ship with chatmill."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest

from handlers.builtin_tools import BUILT_IN_TOOLS, MAX_PASSAGES, current_time, search_text
from handlers.tool_runner import ToolRunner
from handlers.units import convert
from schemas.agent_message import ToolCall
from schemas.agent_session import AgentSession
from schemas.tool import ToolContext


async def run(name: str, **args: Any) -> str:
    runner = ToolRunner(AgentSession(session_id="s", tools=BUILT_IN_TOOLS), ["the quick brown fox"])
    result = await runner.run(ToolCall(id="a", name=name, args=args))
    assert not result.is_error, result.text
    return result.text


async def test_each_runs_with_arguments_as_a_model_sends_them() -> None:
    assert "(UTC)" in await run("current_time")
    assert await run("calculator", expression="6*7") == "42"
    assert await run("convert_units", value=1, from_unit="mi", to_unit="km") == "1.609344 km"
    assert await run("search_text", query="FOX") == "the quick brown fox"


def test_none_of_them_writes() -> None:
    assert {tool.effect for tool in BUILT_IN_TOOLS} == {"pure", "read"}


@pytest.mark.parametrize(("zone", "offset"), [("UTC", "+00:00"), ("+05:30", "+05:30"), ("GMT-3", "-03:00")])
def test_the_time_is_told_in_a_zone_by_offset(zone: str, offset: str) -> None:
    weekday, stamp, _ = re.split(r", | \(", current_time(zone))

    assert stamp.endswith(offset)
    assert f"{datetime.fromisoformat(stamp):%A}" == weekday


@pytest.mark.parametrize("zone", ["nowhere", "", "../../etc/passwd", "/etc/passwd", "+99:00", "a\x00b"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="not known"):
        current_time(zone)


@pytest.mark.parametrize(
    ("value", "source", "target", "converted"),
    [
        (100, "°C", "F", "212 F"),
        (32, "f", "c", "0 c"),
        (0, "C", "K", "273.15 K"),
        (1, "gal", "L", "3.785411784 L"),
        (90, "min", "h", "1.5 h"),
        (36, "km/h", "m/s", "10 m/s"),
        (1, "GiB", "MB", "1073.741824 MB"),
        (-5, "km", "m", "-5000 m"),
    ],
)
def test_units_are_converted(value: float, source: str, target: str, converted: str) -> None:
    assert convert(value, source, target) == converted


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [(1, "kg", "m"), (1, "parsec", "m"), (-300, "c", "k"), (float("inf"), "m", "km"), (float("nan"), "c", "f")],
)
def test_what_cannot_be_converted_is_refused(value: float, source: str, target: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        convert(value, source, target)


def test_a_search_shows_what_stands_around_a_word() -> None:
    text = "a" * 1000 + " the Fox sleeps " + "b" * 1000

    found = search_text("fox", ToolContext(user_texts=(text,)))

    assert "the Fox sleeps" in found
    assert len(found) < 500


def test_passages_with_more_of_the_words_come_first() -> None:
    texts = ("only red", "red fox", "no match")

    assert search_text("red fox", ToolContext(user_texts=texts)).split("\n\n") == ["red fox", "only red"]


def test_a_search_shows_only_so_many_passages() -> None:
    found = search_text("fox", ToolContext(user_texts=("fox",) * 50))

    assert found.split("\n\n") == ["fox"] * MAX_PASSAGES


def test_a_search_that_finds_nothing_says_so() -> None:
    assert search_text("fox", ToolContext()) == "Nothing the user wrote matches."


def test_a_search_for_no_word_is_refused() -> None:
    with pytest.raises(ValueError, match="no word"):
        search_text("?!", ToolContext(user_texts=("?!",)))
