"""Times of the API as people read them."""

from __future__ import annotations

from datetime import datetime


def local_time(at: str) -> str:
    """An RFC 3339 time in the reader's own time zone, to the second; without the date if that is today's."""
    then = datetime.fromisoformat(at).astimezone()
    today = datetime.now(tz=then.tzinfo).date()
    return then.strftime("%H:%M:%S" if then.date() == today else "%Y-%m-%d %H:%M:%S")


def duration(start: str, end: str | None) -> str:
    """The time between two RFC 3339 times; empty while there is no end."""
    if end is None:
        return ""
    seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
