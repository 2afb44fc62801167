"""Points in time as people say them."""

from __future__ import annotations

import pytest

from schemas.moment import moment_us

NOW = 1_700_000_000_000_000


@pytest.mark.parametrize(
    ("text", "ago_s"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5h", 5400), ("7d", 604_800), (" 1w ", 604_800)]
)
def test_how_long_ago_is_counted_back_from_now(text: str, ago_s: float) -> None:
    assert moment_us(text, NOW) == NOW - ago_s * 1_000_000


def test_a_time_without_a_zone_is_utc() -> None:
    for text in ("2023-11-14T22:13:20Z", "2023-11-14T22:13:20", "2023-11-14 23:13:20+01:00"):
        assert moment_us(text, 0) == NOW
    assert moment_us("2023-11-14", 0) == NOW - (22 * 3600 + 13 * 60 + 20) * 1_000_000


def test_nothing_is_before_1970() -> None:
    assert moment_us("999999w", NOW) == moment_us("0001-01-01", NOW) == 0


@pytest.mark.parametrize("text", ["", "yesterday", "2", "-2h", "2 h", "h", "2023-13-01", "1e9h", "9" * 50 + "h", "٢h"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give a time"):
        moment_us(text, NOW)
