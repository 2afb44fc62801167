"""What was asked of the server and how it ended, kept for tests: the last requests and a few counters."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Literal

import orjson

#: `open`: being answered. `done`: answered to the end. `gone`: the client left first. `broken`: the server broke off.
State = Literal["open", "done", "gone", "broken"]

#: The ring forgets the oldest request beyond this many …
_KEPT = 1_000
#: … or beyond this many bytes of bodies.
_KEPT_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Record:
    """One request to the chat completions endpoint. `status` is what was answered, None until that is known."""

    id: int
    at: float
    authorization: bool
    raw: bytes
    state: State = "open"
    status: int | None = None

    def shown(self) -> dict[str, Any]:
        """As JSON fields; the body as it came, or as a string if it is no JSON."""
        try:
            orjson.loads(self.raw)
            body: Any = orjson.Fragment(self.raw)
        except orjson.JSONDecodeError:
            body = self.raw.decode(errors="replace")
        return {
            "id": self.id,
            "at": self.at,
            "authorization": self.authorization,
            "state": self.state,
            "status": self.status,
            "body": body,
        }


class Journal:
    """The last requests, newest last. Whoever waits for a change is woken by it."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque()
        self._bytes = 0
        self._total = 0
        self._ended: Counter[State] = Counter()
        self._changed = asyncio.Event()
        self._stopped = False

    def begin(self, raw: bytes, at: float, *, authorization: bool) -> Record:
        """Note a request that has arrived."""
        self._total += 1
        record = Record(self._total, at, authorization, raw)
        self._records.append(record)
        self._bytes += len(raw)
        while len(self._records) > _KEPT or (self._bytes > _KEPT_BYTES and len(self._records) > 1):
            self._bytes -= len(self._records.popleft().raw)
        self._wake()
        return record

    def end(self, record: Record, state: State) -> None:
        """Note how a request ended."""
        record.state = state
        self._ended[state] += 1
        self._wake()

    def clear(self) -> None:
        """Forget the requests; the counters go on."""
        self._records.clear()
        self._bytes = 0

    def stats(self) -> dict[str, int]:
        """Counters since the start: requests, and of them open, done, gone and broken ones."""
        ended = {state: self._ended[state] for state in ("done", "gone", "broken")}
        return {"requests": self._total, "open": self._total - sum(ended.values()), **ended}

    def find(self, *, containing: bytes = b"", state: str = "", limit: int = _KEPT) -> list[Record]:
        """The newest `limit` requests whose raw body contains some bytes and which are in a state, oldest first."""
        found = [r for r in self._records if containing in r.raw and state in ("", r.state)]
        return found[-limit:] if limit else []

    async def wait_for(self, seconds: float, *, containing: bytes = b"", state: str = "", count: int = 1) -> None:
        """Return when `count` requests match, or after some seconds."""
        try:
            async with asyncio.timeout(seconds):
                while not self._stopped and len(self.find(containing=containing, state=state)) < count:
                    await self._changed.wait()
        except TimeoutError:
            return

    def stop(self) -> None:
        """End all waits, also those to come."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
