"""What one attempt shows: its events on the way into the job's log."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from schemas.job_event import encode_event
from schemas.stream_event import ToolNote
from storage.event_log import Batch
from storage.jobs.statements import Recorded

#: Events that travel together for one job; more wait for the next round trip.
MAX_BATCH = 64


class JobStream:
    """The unsent and unacknowledged events of one attempt, in order.

    A batch whose fate is unknown is sent again byte for byte, alone, before anything else: joining it with later text
    would lose text. Text that has not been numbered yet is joined, since nobody has seen it.
    """

    def __init__(self, opening: Recorded, wake: Callable[[JobStream], None]) -> None:
        self.job_id = opening.job_id
        self.epoch = opening.epoch
        self._wake = wake
        #: The seq the log last acknowledged in this epoch.
        self._base = 0
        #: The batch on its way, or of unknown fate.
        self.sent: Batch | None = None
        self._opening: bytes | None = opening.event
        #: Text that may still be joined, and tool events as they will be sent.
        self._pending: deque[str | bytes] = deque()
        self._text: list[str] = []
        self._tools: list[ToolNote] = []
        self._drained = asyncio.Event()
        #: When the attempt showed its first text, in monotonic seconds.
        self.first_text_at: float | None = None
        #: No more events are taken or sent: the attempt is over, or lost.
        self.closed = False
        #: The log has lost entries, and the rebuild that says them again is not committed yet.
        self.rebuilding = False

    @property
    def text(self) -> str:
        """All text shown by this attempt so far."""
        return "".join(self._text)

    @property
    def tools(self) -> list[ToolNote]:
        """All tool notes shown by this attempt so far."""
        return list(self._tools)

    def add_text(self, text: str) -> None:
        """Show text; joined with text that still waits."""
        if self.first_text_at is None:
            self.first_text_at = time.monotonic()
        self._text.append(text)
        if self._pending and isinstance(self._pending[-1], str):
            self._pending[-1] += text
        else:
            self._pending.append(text)
        self._dirty()

    def carry(self, text: str, tools: Sequence[ToolNote]) -> None:
        """Begin with what earlier attempts have kept: a `snapshot`, right after `started`."""
        self._text.append(text)
        self._tools += tools
        self._pending.append(encode_event("snapshot", self.job_id, _now_us(), text=text, tools=list(tools)))
        self._dirty()

    def add_tool(self, tool: ToolNote) -> None:
        """Show that a tool call started or finished. Raises TypeError for a note that no JSON can say."""
        self._pending.append(encode_event("tool", self.job_id, _now_us(), tool=tool))
        self._tools.append(tool)
        self._dirty()

    def next_batch(self) -> Batch | None:
        """What to send now: the batch of unknown fate, else the epoch's opening, else all that waits; or None."""
        if self.closed or self.rebuilding:
            return None
        if self.sent is None:
            if self._opening is not None:
                self.sent = Batch(self.job_id, self.epoch, 0, (self._opening,))
            elif self._pending:
                events = [self._encode(self._pending.popleft()) for _ in range(min(len(self._pending), MAX_BATCH))]
                self.sent = Batch(self.job_id, self.epoch, self._base, tuple(events))
        return self.sent

    def acknowledge(self, batch: Batch) -> None:
        """The log has this batch."""
        if self.sent is not batch:
            return  # a rebuild or the end of the attempt overtook it
        self._base = batch.base + len(batch.events)
        self._opening = None
        self.sent = None
        if not self._pending:
            self._drained.set()

    def snapshot(self) -> tuple[str, list[ToolNote]]:
        """The log has lost entries: stop sending and return all that was shown, to be said again by a rebuild."""
        self.rebuilding = True
        self.sent = None
        self._pending.clear()
        return self.text, self.tools

    def reopen(self, rebuilt: Recorded) -> None:
        """The rebuild is committed: go on in its epoch, its `snapshot` first, then what was shown meanwhile."""
        self.epoch, self._base, self._opening = rebuilt.epoch, 0, rebuilt.event
        self.rebuilding = False
        self._dirty()

    def close(self) -> None:
        """Take and send nothing more."""
        self.closed = True
        self._drained.set()

    async def drain(self) -> None:
        """Wait until the log has acknowledged all that was shown, or the stream is closed."""
        await self._drained.wait()

    def _dirty(self) -> None:
        if not self.closed:
            self._drained.clear()
            self._wake(self)

    def _encode(self, item: str | bytes) -> bytes:
        return item if isinstance(item, bytes) else encode_event("text", self.job_id, _now_us(), text=item)


def _now_us() -> int:
    """Of a display only: SQL's clock decides, this one dates a token."""
    return time.time_ns() // 1000
