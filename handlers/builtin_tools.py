"""The tools that ship with chatmill: harmless, offline, and short."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from handlers.calculator import calculate
from handlers.units import UNITS, convert
from schemas.tool import Tool, ToolContext

#: Passages that `search_text` gives back, and characters on each side of what was found.
MAX_PASSAGES = 5
PASSAGE_MARGIN = 200


def current_time(timezone: str = "UTC") -> str:
    """The date, weekday and time of day in a time zone. Raises ValueError if the zone is not known."""
    now = datetime.now(_zone(timezone))
    return f"{now:%A}, {now.isoformat(timespec='seconds')} ({timezone})"


def calculator(expression: str) -> str:
    return calculate(expression)


def convert_units(value: float, from_unit: str, to_unit: str) -> str:
    return convert(value, from_unit, to_unit)


def search_text(query: str, context: ToolContext) -> str:
    """Passages of what the user has written in this conversation that hold the most words of the query."""
    words = {word.casefold() for word in re.findall(r"\w+", query)}
    if not words:
        raise ValueError("the query holds no word")
    pattern = re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)), re.IGNORECASE)
    passages = [passage for text in context.user_texts for passage in _passages(text, pattern)]
    passages.sort(key=lambda passage: -len({match.casefold() for match in pattern.findall(passage)}))
    return "\n\n".join(passages[:MAX_PASSAGES]) or "Nothing the user wrote matches."


def _passages(text: str, pattern: re.Pattern[str]) -> list[str]:
    passages: list[str] = []
    end = -1
    for match in pattern.finditer(text):
        if match.start() < end:
            continue  # it stands in the passage before
        start, end = max(0, match.start() - PASSAGE_MARGIN), match.end() + PASSAGE_MARGIN
        before, after = "…" if start else "", "…" if end < len(text) else ""
        passages.append(f"{before}{text[start:end].strip()}{after}")
    return passages


def _zone(name: str) -> tzinfo:
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC  # known even where no time zone database is installed
    if offset := re.fullmatch(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?", name, re.IGNORECASE):
        sign, hours, minutes = offset[1], int(offset[2]), int(offset[3] or 0)
        if hours <= 14 and minutes < 60:
            delta = timedelta(hours=hours, minutes=minutes)
            return timezone(delta if sign == "+" else -delta)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"the time zone {name[:60]!r} is not known; use a name like Europe/Berlin or +02:00") from None


def _object(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


BUILT_IN_TOOLS = (
    Tool(
        name="current_time",
        description="The current date, weekday and time of day.",
        parameters=_object(
            [],
            timezone={
                "type": "string",
                "description": "IANA name such as Europe/Berlin, or an offset such as +02:00. UTC if left out.",
            },
        ),
        function=current_time,
        effect="read",
    ),
    Tool(
        name="calculator",
        description="Evaluates an arithmetic expression exactly. Use it instead of computing yourself.",
        parameters=_object(
            ["expression"],
            expression={
                "type": "string",
                "description": "Such as (3 + 4.5) * 2 ** 10; also sqrt, abs, round, min, max, exp, ln, log10, pi, e.",
            },
        ),
        function=calculator,
        effect="pure",
    ),
    Tool(
        name="convert_units",
        description="Converts a value between units of length, mass, volume, area, time, speed, data or temperature.",
        parameters=_object(
            ["value", "from_unit", "to_unit"],
            value={"type": "number"},
            from_unit={"type": "string", "description": f"One of: {', '.join(UNITS)}."},
            to_unit={"type": "string", "description": "A unit of the same kind."},
        ),
        function=convert_units,
        effect="pure",
    ),
    Tool(
        name="search_text",
        description="Searches everything the user has written or pasted in this conversation for words.",
        parameters=_object(["query"], query={"type": "string", "description": "The words to look for."}),
        function=search_text,
        effect="pure",
        wants_context=True,
    ),
)
