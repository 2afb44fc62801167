"""What goes back over one connection, and when: a status, headers, and a body that may take its time or break off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias


class Stop(Enum):
    """How a body ends other than well."""

    #: Nothing more is sent and the connection stays open, until the client leaves.
    HANG = auto()
    #: The connection is reset; what the client has not read yet may be lost to it.
    RESET = auto()
    #: The connection is closed within the chunked body.
    CLOSE = auto()


#: Bytes to send as one write (no bytes: the headers alone), seconds to wait, or how to break off.
Action: TypeAlias = bytes | float | Stop

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """A whole body, or the actions that make one. Nothing is sent, not even the headers, before the first bytes."""

    body: bytes | Iterator[Action]
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
