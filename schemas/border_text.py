"""Text and JSON as they come in from outside.

PostgreSQL refuses NUL in text, and a lone surrogate cannot be encoded as UTF-8: both are replaced by U+FFFD at the
border, so that nothing behind it ever has to think of them.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

import orjson

from schemas.errors import MalformedRequest

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
#: orjson writes at most 254 levels; what is accepted goes some levels deeper, into rows and messages.
MAX_DEPTH = 200
_INTEGERS = range(-(2**63), 2**64)


def clean_text(text: str) -> str:
    """The text with NUL and lone surrogates replaced by U+FFFD; a split surrogate pair is joined first."""
    if not _UNSTORABLE.search(text):
        return text
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return joined.replace("\x00", _REPLACEMENT)


def clean_json(value: Any, levels: int = MAX_DEPTH) -> Any:
    """A JSON value made storable: every string cleaned, keys included, and integers beyond 64 bits as floats.

    Raises MalformedRequest for what JSON has no number for, and for more than `levels` of nesting.
    """
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, (list, dict)):
        if levels == 0:
            raise MalformedRequest("the JSON is nested too deeply")
        if isinstance(value, list):
            return [clean_json(item, levels - 1) for item in value]
        return {clean_text(key): clean_json(item, levels - 1) for key, item in value.items()}
    if isinstance(value, int) and value not in _INTEGERS:
        value = float(str(value))  # inf, where float(value) would raise
    if isinstance(value, float) and not math.isfinite(value):
        raise MalformedRequest("a number in the JSON is out of range")
    return value


class TextRepair:
    """`clean_text` for text that comes in pieces: a high surrogate is held until its other half arrives."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """The next piece of clean text; may be empty while half a character is held."""
        text = self._held + piece
        self._held = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._held = text[:-1], text[-1]
        return clean_text(text)

    def flush(self) -> str:
        """What is left at the end of the text: a half whose other half never came."""
        held, self._held = self._held, ""
        return clean_text(held)


def parse_json(data: bytes | bytearray | str) -> Any:
    """Parse JSON from outside: strict about the grammar, forgiving about NUL and lone surrogates.

    Raises MalformedRequest with the position of the fault.
    """
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
    if b"\\u0000" not in raw:
        # What orjson accepts holds no lone surrogate and no odd number; with no NUL there is nothing to clean.
        try:
            value = orjson.loads(raw)
        except orjson.JSONDecodeError:
            pass  # perhaps only a lone surrogate: the slower parser decides
        else:
            _check_depth(value, MAX_DEPTH)
            return value
    try:
        return clean_json(json.loads(raw, parse_constant=_refuse_constant))
    except RecursionError:
        raise MalformedRequest("the JSON is nested too deeply") from None
    except UnicodeDecodeError:
        raise MalformedRequest("the body is not UTF-8 text") from None
    except ValueError as error:
        raise MalformedRequest(f"the body is not valid JSON: {error}") from None


def _check_depth(value: Any, levels: int) -> None:
    if isinstance(value, (list, dict)):
        if levels == 0:
            raise MalformedRequest("the JSON is nested too deeply")
        for item in value if isinstance(value, list) else value.values():
            _check_depth(item, levels - 1)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
