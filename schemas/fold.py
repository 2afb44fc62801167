"""What a client does with a job's events: fold them into the text to show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from schemas.job_event import TERMINAL_KINDS, EventId

#: An id before every event's.
BEFORE_ALL = EventId(-1, 0)


@dataclass(slots=True)
class Fold:
    """The text a client shows, built event by event; feed it every event of one job in the order received.

    Events at or before the last one seen are ignored, so feeding a resumed stream twice does no harm.
    """

    text: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    last_id: EventId = BEFORE_ALL
    #: The terminal event, once seen; whatever follows it is of a redrive and clears it.
    terminal: dict[str, Any] | None = None

    def apply(self, event_id: EventId, event: dict[str, Any]) -> bool:
        """Take one event; True if it was new."""
        if event_id <= self.last_id:
            return False
        self.last_id = event_id
        if self.terminal is not None:
            # Redriven, even if the log lost the `queued` and `started` that said so.
            self.text, self.tools, self.terminal = "", [], None
        kind = event["kind"]
        if kind == "text":
            self.text += event["text"]
        elif kind == "tool":
            self.tools.append(event["tool"])
        elif kind == "snapshot":
            self.text, self.tools = event["text"], list(event["tools"])
        elif kind in ("queued", "started"):
            # What was shown of earlier attempts is void.
            self.text, self.tools = "", []
        elif kind in TERMINAL_KINDS:
            self.terminal = event
            self.text = "".join(m["content"] for m in event.get("response", []) if m["role"] == "assistant")
        return True
