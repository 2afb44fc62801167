"""Text from a model or a tool, made safe for a terminal.

A terminal obeys what is printed to it: an answer could recolour it, rename its window, or write over lines that stand
there already. So no control character but newline and tab gets through, and escape sequences go as a whole.
"""

from __future__ import annotations

import re
from enum import Enum, auto

#: C0 without newline and tab, DEL, C1.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: A string sequence without an end must not swallow the rest of an answer.
_STRING_MAX = 256


class _State(Enum):
    TEXT = auto()
    #: After ESC and any intermediate characters.
    ESCAPE = auto()
    #: In a control sequence, `ESC [ … letter`.
    CONTROL = auto()
    #: In a string, `ESC ] … BEL` or `ESC ] … ESC \\`, as terminals take titles and links.
    STRING = auto()


class SafeText:
    """Filters a text that comes in pieces: however it is cut, the outputs join to the same text."""

    def __init__(self) -> None:
        self._state = _State.TEXT
        self._string_length = 0

    def feed(self, piece: str) -> str:
        """What of this piece may be printed."""
        if self._state is _State.TEXT and not _CONTROL.search(piece):
            return piece
        return "".join(filter(self._shows, piece))

    def _shows(self, char: str) -> bool:
        """Whether the next character is printed."""
        if char == "\n":  # no sequence goes on over the end of a line
            self._state = _State.TEXT
            return True
        if char == "\x1b":
            self._state = _State.ESCAPE
            return False
        match self._state:
            case _State.TEXT:
                return not _CONTROL.match(char)
            case _State.ESCAPE:
                self._state = self._after_escape(char)
            case _State.CONTROL:
                if "\x40" <= char <= "\x7e":
                    self._state = _State.TEXT
            case _State.STRING:
                self._string_length += 1
                if char == "\x07" or self._string_length > _STRING_MAX:
                    self._state = _State.TEXT
        return False

    def _after_escape(self, char: str) -> _State:
        if char == "[":
            return _State.CONTROL
        if char in "]PX^_":
            self._string_length = 0
            return _State.STRING
        return _State.ESCAPE if "\x20" <= char <= "\x2f" else _State.TEXT


def safe_text(text: str) -> str:
    """The whole of a text, filtered."""
    return SafeText().feed(text)


def safe_line(text: str, width: int) -> str:
    """A text as one line of at most `width` characters."""
    line = " ".join(safe_text(text).split())
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"
