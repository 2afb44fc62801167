"""What `chatmill doctor` finds out about one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

#: How long anything that is asked may take to answer.
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """A finding: `ok`, `warning` (it works, with a risk) or `wrong`; the last two say what to do."""

    name: str
    status: Literal["ok", "warning", "wrong"]
    message: str
    remedy: str = ""

    @classmethod
    def ok(cls, name: str, message: str) -> Check:
        return cls(name, "ok", message)

    @classmethod
    def warning(cls, name: str, message: str, remedy: str) -> Check:
        return cls(name, "warning", message, remedy)

    @classmethod
    def wrong(cls, name: str, message: str, remedy: str) -> Check:
        return cls(name, "wrong", message, remedy)


def without_password(url: str) -> str:
    """An address as it may be shown."""
    try:
        parts = urlsplit(url)
        if "@" not in parts.netloc:
            return url
        return urlunsplit(parts._replace(netloc="***@" + parts.netloc.rpartition("@")[2]))
    except ValueError:
        return "(an address that cannot be read)"
