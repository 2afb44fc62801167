"""A worker whose every step a test takes itself: the same transitions and appends as the real one's, in any order."""

from __future__ import annotations

import time
from collections.abc import Sequence

from schemas.agent_message import AgentMessage
from schemas.errors import JobError
from schemas.job_event import encode_event
from schemas.stream_event import ToolNote
from storage.database import Database
from storage.event_log import Append, Batch, EventLog
from storage.jobs import settle
from storage.jobs.claim import Claim, claim
from storage.jobs.statements import Recorded

LEASE_US = 60_000_000


class PlayedAttempt:
    """One attempt: shows text and tools, and ends in one of the ways an attempt ends."""

    def __init__(self, database: Database, log: EventLog, claimed: Claim) -> None:
        self.claim = claimed
        self.epoch = claimed.epoch
        #: All text shown so far.
        self.text = ""
        self.tools: list[ToolNote] = []
        self._base = 1
        self._database = database
        self._log = log

    async def say(self, *pieces: str) -> None:
        """Show text, each piece an event, all in one batch."""
        self.text += "".join(pieces)
        await self._append([encode_event("text", self.claim.job_id, _now_us(), text=piece) for piece in pieces])

    async def use(self, tool: ToolNote) -> None:
        """Show a tool call."""
        self.tools.append(tool)
        await self._append([encode_event("tool", self.claim.job_id, _now_us(), tool=tool)])

    async def finish(self, text: str | None = None, *, tell: bool = True) -> Recorded:
        """Answer with what was shown; without `tell` the event does not reach the log."""
        response = [AgentMessage.assistant(self.text if text is None else text)]
        return await self._settled(
            await self._database.write(settle.finish, self.claim.job_id, self.epoch, response, None), tell
        )

    async def fail(self, *, retryable: bool = True, delay_us: int = 0, tell: bool = True) -> Recorded:
        error = JobError(code="provider_error", message="the provider failed", retryable=retryable)
        return await self._settled(
            await self._database.write(settle.fail, self.claim.job_id, self.epoch, error, delay_us=delay_us), tell
        )

    async def release(self, *, tell: bool = True) -> Recorded:
        return await self._settled(await self._database.write(settle.release, self.claim.job_id, self.epoch), tell)

    async def cancel(self, reason: str, *, tell: bool = True) -> Recorded:
        response = [AgentMessage.assistant(self.text)] if self.text else []
        return await self._settled(
            await self._database.write(settle.cancel, self.claim.job_id, self.epoch, reason, response), tell
        )

    async def _append(self, events: Sequence[bytes]) -> None:
        batch = Batch(self.claim.job_id, self.epoch, self._base, tuple(events))
        result = await self._log.append(batch)
        if result is Append.LOST:
            rebuilt = await self._database.write(settle.rebuild, self.claim.job_id, self.epoch, self.text, self.tools)
            self.epoch, self._base = rebuilt.epoch, 1
            result = await self._log.append(Batch(rebuilt.job_id, rebuilt.epoch, 0, (rebuilt.event,)))
        else:
            self._base += len(events)
        assert result is Append.OK

    async def _settled(self, recorded: Recorded, tell: bool) -> Recorded:
        if tell:
            await append_transition(self._log, recorded)
        return recorded


class PlayedWorker:
    """Claims jobs."""

    def __init__(self, database: Database, log: EventLog) -> None:
        self._database = database
        self._log = log

    async def claim(self, queue: str = "chat", *, tell: bool = True) -> PlayedAttempt:
        """The next runnable job, which must be there."""
        claimed = await self._database.write(claim, queue, "played", LEASE_US)
        assert claimed is not None, "there is no runnable job"
        if tell:
            await append_transition(self._log, claimed.recorded)
        return PlayedAttempt(self._database, self._log, claimed)


async def append_transition(log: EventLog, recorded: Recorded) -> None:
    """Append the event of a committed transition."""
    batch = Batch(recorded.job_id, recorded.epoch, 0, (recorded.event,), recorded.terminal)
    assert await log.append(batch) is Append.OK


def _now_us() -> int:
    return time.time_ns() // 1000
