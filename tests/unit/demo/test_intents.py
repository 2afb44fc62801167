import time

import pytest

from demo.intents import find_expression, wanted_calls
from tests.unit.demo.asking import ALL_TOOLS, request, tool


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("what is 17 * 23", "17 * 23"),
        ("What's 17*23?", "17 * 23"),
        ("17 x 23", "17 * 23"),
        ("17 × 23 ÷ 2", "17 * 23 / 2"),
        ("Add 2 and 3, please.", "2 + 3"),
        ("add 2, 3 and 4", "2 + 3 + 4"),
        ("the sum of 2.5 and 3", "2.5 + 3"),
        ("2 plus 3", "2 + 3"),
        ("subtract 3 from 10", "10 - 3"),
        ("multiply 4 by 5", "4 * 5"),
        ("divide 10 by 4", "10 / 4"),
        ("10 divided by 4", "10 / 4"),
        ("compute (1 + 2) * -3", "(1 + 2) * -3"),
        ("2^10", "2 ** 10"),
        ("what is 10-4", "10 - 4"),
        ("what is 7 times 6 minus 2?", "7 * 6 - 2"),
    ],
)
def test_arithmetic_is_found_in_symbols_and_in_words(text: str, expression: str) -> None:
    assert find_expression(text) == expression


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "it takes 3-5 days",
        "on 2026-11-30",
        "on 1/2/2026",
        "I am 42",
        "version v1.2+3",
        "(1 + 2",
        "ten plus two",
    ],
)
def test_ranges_dates_and_words_are_no_arithmetic(text: str) -> None:
    assert find_expression(text) is None


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("what is 17 * 23", [("calculator", {"expression": "17 * 23"})]),
        ("What time is it?", [("current_time", {})]),
        ("what's the time in New York?", [("current_time", {"timezone": "America/New_York"})]),
        ("tell me the current time in Europe/Rome", [("current_time", {"timezone": "Europe/Rome"})]),
        ("convert 10 km to miles", [("convert_units", {"value": 10, "from_unit": "km", "to_unit": "miles"})]),
        ("Convert 2.5kg into lb", [("convert_units", {"value": 2.5, "from_unit": "kg", "to_unit": "lb"})]),
        ("how many miles are 10 km?", [("convert_units", {"value": 10, "from_unit": "km", "to_unit": "miles"})]),
        ("what is 30 °C in °F", [("convert_units", {"value": 30, "from_unit": "°C", "to_unit": "°F"})]),
        ("search my text for quarterly goals", [("search_text", {"query": "quarterly goals"})]),
        ("What is 2 + 3, and what time is it?", [("calculator", {"expression": "2 + 3"}), ("current_time", {})]),
        ("tell me a story", []),
    ],
)
def test_a_text_asks_for_tools(text: str, calls: list[tuple[str, dict[str, object]]]) -> None:
    assert wanted_calls(text, request("x", tools=ALL_TOOLS).tools) == calls


def test_a_tool_that_is_not_offered_is_not_called() -> None:
    assert wanted_calls("what is 17 * 23 and what time is it", request("x").tools) == []


def test_a_tool_whose_parameters_are_unknown_is_not_called() -> None:
    assert wanted_calls("what is 17 * 23", request("x", tools=[tool("calculator", formula="string")]).tools) == []


def test_a_required_time_zone_is_given() -> None:
    clock = tool("get_time", "tz", tz="string")
    assert wanted_calls("what time is it", request("x", tools=[clock]).tools) == [("get_time", {"tz": "UTC"})]


@pytest.mark.parametrize(
    "text", ["(" * 100_000, "1" * 100_000, "1 + " * 50_000, "look " * 50_000, "convert 1 " * 20_000]
)
def test_a_long_odd_text_is_searched_quickly(text: str) -> None:
    started = time.perf_counter()
    wanted_calls(text, request("x", tools=ALL_TOOLS).tools)
    assert time.perf_counter() - started < 1
