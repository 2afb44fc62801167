"""Server-sent events as a model's server sends them."""

from __future__ import annotations

from typing import NamedTuple

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ServerEvent(NamedTuple):
    """One event: its name (empty for most) and its data, lines joined by a line feed."""

    name: bytes
    data: bytes


class SseParser:
    """Finds the events in a stream of bytes, however it is torn into pieces (WHATWG HTML, "Server-sent events").

    Unlike a browser it also gives the last event if the stream ends without the blank line after it.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._name = b""
        self._data: list[bytes] = []
        self._after_cr = False
        self._at_start = True

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """The events that this piece completes."""
        if piece.startswith(b"data: ") and piece.endswith(b"\n\n") and self._takes_whole(piece):
            return [ServerEvent(b"", piece[6:-2])]
        return self._feed_lines(piece)

    def end(self) -> list[ServerEvent]:
        """What is left when the stream has ended."""
        return self._feed_lines(b"\n\n")

    def _takes_whole(self, piece: bytes) -> bool:
        """Whether the piece is just one event of one line between two others: how most of them arrive."""
        between = not (self._line or self._data or self._name or self._after_cr)
        return between and piece.count(b"\n") == 2 and b"\r" not in piece

    def _feed_lines(self, piece: bytes) -> list[ServerEvent]:
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]  # the second half of a CR LF whose first half has ended a line
        self._after_cr = piece.endswith(b"\r") or (self._after_cr and not piece)
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = piece.split(b"\n")
        events = []
        for line in lines:
            self._line += line
            event = self._take_line(bytes(self._line))
            self._line.clear()
            if event is not None:
                events.append(event)
        self._line += rest
        return events

    def _take_line(self, line: bytes) -> ServerEvent | None:
        if self._at_start:
            line, self._at_start = line.removeprefix(_BYTE_ORDER_MARK), False
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        return None  # comments, ids and reconnection times concern nobody here

    def _dispatch(self) -> ServerEvent | None:
        event = ServerEvent(self._name, b"\n".join(self._data)) if self._data else None
        self._name = b""
        self._data.clear()
        return event
