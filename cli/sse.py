"""Server-sent events, read from bytes as they come (the WHATWG HTML standard, section 9.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event. `id` is the last id the stream has named so far, "" before the first."""

    data: str
    id: str = ""
    event: str = "message"


class SseParser:
    """Turns pieces of an event stream, cut anywhere, into its events. One parser per connection.

    An event is only told once its blank line has come: what a cut connection leaves unfinished is never told.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._after_cr = False
        self._at_start = True
        self._data: list[str] = []
        self._id = ""
        self._event = ""

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """The events that this piece completes."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]  # the second half of a CRLF that two pieces share
            self._after_cr = False
        if not piece:
            return []
        self._after_cr = piece.endswith(b"\r")
        first, *others = _LINE_END.split(piece)
        self._line += first
        events = []
        for part in others:
            event = self._take_line(bytes(self._line))
            if event is not None:
                events.append(event)
            self._line = bytearray(part)
        return events

    def _take_line(self, line: bytes) -> ServerSentEvent | None:
        if self._at_start:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._at_start = False
        if not line:
            return self._end_event()
        name, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        # A comment is a field without a name; it is ignored like every field that we do not know.
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _end_event(self) -> ServerSentEvent | None:
        data, self._data = self._data, []
        event, self._event = self._event, ""
        if not data:
            return None
        return ServerSentEvent("\n".join(data), self._id, event or "message")
