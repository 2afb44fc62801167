"""A point in time as people say it: RFC 3339, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, StringConstraints
from pydantic_core import PydanticCustomError

MOMENT_MAX = 40
WANTED = "give a time such as 2026-11-30T22:00:00Z, or how long ago: 90s, 30m, 2h, 7d, 1w"
_AGO = re.compile(r"(?P<number>[0-9]{1,6}(?:\.[0-9]{1,3})?)(?P<unit>[smhdw])")
_UNIT_US = {
    unit: seconds * 1_000_000 for unit, seconds in {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}.items()
}


def moment_us(text: str, now_us: int) -> int:
    """Microseconds since 1970 of `2026-11-30T22:00:00Z`, or of `2h` (s, m, h, d, w) before `now_us`.

    A time without a zone is UTC. Raises ValueError for anything else.
    """
    if ago := _AGO.fullmatch(text.strip()):
        return max(now_us - round(float(ago["number"]) * _UNIT_US[ago["unit"]]), 0)
    try:
        then = datetime.fromisoformat(text.strip())
        return max(round((then if then.tzinfo else then.replace(tzinfo=UTC)).timestamp() * 1_000_000), 0)
    except (ValueError, OverflowError):
        raise ValueError(WANTED) from None


def _checked(text: str) -> str:
    try:
        moment_us(text, 0)
    except ValueError as error:
        raise PydanticCustomError("moment", "{reason}", {"reason": str(error)}) from None
    return text


Moment = Annotated[str, StringConstraints(max_length=MOMENT_MAX), AfterValidator(_checked)]
