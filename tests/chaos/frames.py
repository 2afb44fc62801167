"""Server-sent events, read as simply as they are sent: for clients here and for whoever checks what they recorded."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from schemas.job_event import EventId


class Frame(NamedTuple):
    """One event as received: its id, the name of its frame, its bytes."""

    id: EventId
    name: str
    data: bytes

    @property
    def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(self.data)
        return event


def frames(body: bytes) -> list[Frame]:
    """The whole frames of a stream; what a cut connection leaves unfinished is none. Raises ValueError for nonsense."""
    whole, _, _ = body.rpartition(b"\n\n")
    found = []
    for block in whole.split(b"\n\n"):
        fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if line and not line.startswith(b":"))
        if fields:
            found.append(Frame(EventId.parse(fields[b"id"].decode()), fields[b"event"].decode(), fields[b"data"]))
    return found
