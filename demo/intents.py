"""Which offered tools a text asks for: sums, the time, unit conversions and searches, found by plain patterns."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from demo.request import Tool

Arguments = dict[str, Any]

#: Only the beginning of a text is searched: a pasted document is not a question, and patterns stay cheap.
_SEARCHED = 2_000

_NUMBER = r"\d+(?:\.\d+)?"
_LISTED = re.compile(rf"\b(?:add|sum of|sum)\s+{_NUMBER}(?:\s*,\s*{_NUMBER})*\s*,?\s*(?:and|to|with)\s+{_NUMBER}", re.I)
_SPOKEN = (
    (rf"\bsubtract\s+({_NUMBER})\s+from\s+({_NUMBER})", r"\2 - \1"),
    (rf"\b(?:multiply|product of)\s+({_NUMBER})\s+(?:by|with|and)\s+({_NUMBER})", r"\1 * \2"),
    (rf"\bdivide\s+({_NUMBER})\s+by\s+({_NUMBER})", r"\1 / \2"),
    (r"\bplus\b", "+"),
    (r"\bminus\b", "-"),
    (r"\b(?:times|multiplied by)\b|×|(?<=\d)\s*x\s*(?=\d)", " * "),
    (r"\bdivided by\b|÷", "/"),
    (r"\bto the power of\b|\^", "**"),
)
_EXPRESSION = re.compile(rf"(?<![\w.])\(*-?{_NUMBER}\)*(?:\s*(?:\*\*|[-+*/%])\s*\(*-?{_NUMBER}\)*)+(?![\w])")
_ASKS_FOR_SUM = re.compile(r"\b(?:what(?:'s| is| are)|how much|calculate|compute|evaluate|solve)\b|=", re.I)

_ASKS_FOR_TIME = re.compile(
    r"\bwhat(?:'s| is)? (?:the )?(?:current )?(?:time|date)\b|\btime is it\b|\b(?:current|local) time\b"
    r"|\bthe time\b|\btoday's date\b",
    re.I,
)
_ZONE = re.compile(r"\b(?:UTC|[A-Z][a-z]+/[A-Z][A-Za-z_]+)\b")
_CITIES = {
    "berlin": "Europe/Berlin",
    "delhi": "Asia/Kolkata",
    "london": "Europe/London",
    "new york": "America/New_York",
    "paris": "Europe/Paris",
    "sydney": "Australia/Sydney",
    "tokyo": "Asia/Tokyo",
}

_UNIT = r"°?[a-zA-Z]+(?:/[a-z]+)?"
_CONVERSIONS = (
    re.compile(
        rf"\bconvert\s+(?P<value>-?{_NUMBER})\s*(?P<source>{_UNIT})\s+(?:to|in|into)\s+(?P<target>{_UNIT})", re.I
    ),
    re.compile(
        rf"\bhow (?:many|much)\s+(?P<target>{_UNIT})\s+(?:is|are|in)\s+(?P<value>-?{_NUMBER})\s*(?P<source>{_UNIT})",
        re.I,
    ),
    re.compile(
        rf"\b(?:what(?:'s| is)|how much is)\s+(?P<value>-?{_NUMBER})\s*(?P<source>{_UNIT})\s+(?:to|in|into)\s+"
        rf"(?P<target>{_UNIT})",
        re.I,
    ),
)
_SEARCH = re.compile(r"\b(?:search|look)\b[^.?!]*?\bfor\s+(?P<query>[^.?!\n]{1,200})", re.I)


def wanted_calls(text: str, tools: tuple[Tool, ...]) -> list[tuple[str, Arguments]]:
    """The calls (name, arguments) a text asks for, of the tools that are offered."""
    text = text[:_SEARCHED]
    found = []
    for word, read in _INTENTS:
        tool = next((tool for tool in tools if word in tool.name.lower()), None)
        arguments = read(text, tool) if tool else None
        if tool and arguments is not None:
            found.append((tool.name, arguments))
    return found


def find_expression(text: str) -> str | None:
    """The arithmetic in a text as an expression ("add 2 and 3" → "2 + 3"); None if there is none."""
    text = _LISTED.sub(lambda listed: " + ".join(re.findall(_NUMBER, listed[0])), text[:_SEARCHED])
    for pattern, operator in _SPOKEN:
        text = re.sub(pattern, operator, text, flags=re.I)
    match = _EXPRESSION.search(text)
    if match is None or match[0].count("(") != match[0].count(")"):
        return None
    # "3-5 days" and "2026-11-30" are no sums, unless somebody asks what they are.
    looks_like_a_range = re.fullmatch(r"\d+(?:[-/]\d+)+", match[0])
    if looks_like_a_range and not _ASKS_FOR_SUM.search(text):
        return None
    return re.sub(r"(?<=[\d)])\s*(\*\*|[-+*/%])\s*", r" \1 ", match[0])


def _sum(text: str, tool: Tool) -> Arguments | None:
    expression = find_expression(text)
    return {"expression": expression} if expression and "expression" in tool.properties else None


def _time(text: str, tool: Tool) -> Arguments | None:
    if not _ASKS_FOR_TIME.search(text):
        return None
    parameter = next((name for name in tool.properties if "zone" in name or name == "tz"), None)
    zone = _zone(text) or ("UTC" if parameter in tool.required else None)
    return {parameter: zone} if parameter and zone else {}


def _zone(text: str) -> str | None:
    if named := _ZONE.search(text):
        return named[0]
    return next((zone for city, zone in _CITIES.items() if re.search(rf"\b{city}\b", text, re.I)), None)


def _conversion(text: str, tool: Tool) -> Arguments | None:
    match = next((match for pattern in _CONVERSIONS if (match := pattern.search(text))), None)
    if match is None:
        return None
    value = float(match["value"])
    arguments: Arguments = {}
    for name, schema in tool.properties.items():
        if schema.get("type") in ("number", "integer"):
            arguments[name] = int(value) if value.is_integer() else value
        elif name.startswith(("to", "target")):
            arguments[name] = match["target"]
        elif name.startswith(("from", "source", "unit")):
            arguments[name] = match["source"]
        elif name in tool.required:
            arguments[name] = match["value"] if name in ("value", "amount", "quantity") else match[0]
    return arguments


def _search(text: str, tool: Tool) -> Arguments | None:
    match = _SEARCH.search(text)
    return {"query": match["query"].strip()} if match and "query" in tool.properties else None


_INTENTS: tuple[tuple[str, Callable[[str, Tool], Arguments | None]], ...] = (
    ("calc", _sum),
    ("time", _time),
    ("convert", _conversion),
    ("search", _search),
)
