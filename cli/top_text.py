"""Numbers of `chatmill top` in few characters."""

from __future__ import annotations

from collections.abc import Sequence

_SPARKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[int]) -> str:
    """A curve of characters, the highest value being the full height."""
    most = max(values, default=0)
    if most == 0:
        return _SPARKS[0] * len(values)
    return "".join(_SPARKS[-(-value * (len(_SPARKS) - 1) // most)] for value in values)


def seconds(value: float | None) -> str:
    """A duration in few characters; empty for None."""
    if value is None:
        return ""
    if value < 60:
        return f"{value:.1f} s"
    minutes, left = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} m" if hours else f"{minutes} m {left:02} s"
