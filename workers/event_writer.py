"""One writer per process sends the events of all its attempts: one round trip at a time, with no added delay.

Whatever arrives while a round trip is under way goes into the next one, so at a hundred chats a token waits 13 ms
where a publish per token made it wait 875.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError, ResponseError

from schemas.errors import StorageUnavailable, TransitionRefused
from schemas.stream_event import ToolNote
from storage.database import Database
from storage.event_log import Append, Batch, EventLog
from storage.jobs.settle import rebuild
from storage.jobs.statements import Recorded
from storage.jobs.views import find_transition
from workers.cancelling import cancel_all
from workers.job_stream import JobStream
from workers.metrics import Metrics

#: Pauses between tries while Redis does not answer.
RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)
#: Pause between tries while SQL does not answer.
SQL_RETRY_S = 0.5

logger = structlog.get_logger(__name__)


class EventWriter:
    """Sends what streams hold until their log has it; rebuilds logs that lost entries; never fails a job."""

    def __init__(self, database: Database, log: EventLog, metrics: Metrics | None = None) -> None:
        self.metrics = metrics or Metrics()
        self._database = database
        self._log = log
        self._dirty: dict[JobStream, None] = {}
        self._work = asyncio.Event()
        self._lost: dict[JobStream, Callable[[], None]] = {}
        self._rebuilds: dict[JobStream, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start sending, on the running event loop."""
        self._task = asyncio.create_task(self._run(), name="event-writer")

    async def close(self) -> None:
        """Stop sending. What the log does not have yet is left to the reconciler."""
        await cancel_all([*self._rebuilds.values(), *([self._task] if self._task else [])])

    def open(self, opening: Recorded, on_lost: Callable[[], None]) -> JobStream:
        """The stream of a new attempt, its `started` on the way.

        `on_lost` is called once if somebody else turns out to hold the job.
        """
        stream = JobStream(opening, self._mark)
        self._lost[stream] = on_lost
        self._mark(stream)
        return stream

    async def seal(self, stream: JobStream, timeout_s: float) -> int:
        """Bring what was shown into the log, for at most `timeout_s`, then close the stream; returns its epoch.

        A rebuild under way is waited for however long SQL takes: without its outcome the epoch is not known.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await stream.drain()
        except TimeoutError:
            logger.warning("events did not reach the log in time", job_id=stream.job_id)
        stream.close()
        while (task := self._rebuilds.get(stream)) is not None:
            await asyncio.wait([task])
        self._lost.pop(stream, None)
        self._dirty.pop(stream, None)
        return stream.epoch

    async def append_last(self, recorded: Recorded, *, timeout_s: float) -> bool:
        """Append the event of the transition that ended an attempt; False if it is left to the reconciler."""
        batch = Batch(recorded.job_id, recorded.epoch, 0, (recorded.event,), recorded.terminal)
        try:
            async with asyncio.timeout(timeout_s):
                await self._log.append(batch)
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("event left to the reconciler", job_id=recorded.job_id, error=type(error).__name__)
            return False
        return True

    def _mark(self, stream: JobStream) -> None:
        self._dirty[stream] = None
        self._work.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._work.wait()
            self._work.clear()
            streams = list(self._dirty)
            self._dirty.clear()
            sent = [(stream, batch) for stream in streams if (batch := stream.next_batch()) is not None]
            if not sent:
                continue
            began = time.perf_counter()
            results = await self._send([batch for _, batch in sent])
            self._count(sent, results, time.perf_counter() - began)
            for (stream, batch), result in zip(sent, results, strict=True):
                self._take(stream, batch, result)
            failed = all(isinstance(result, Exception) for result in results)
            failures = failures + 1 if failed else 0
            if failures == 1:
                logger.warning("the event log does not answer; events wait", error=type(results[0]).__name__)
            if failed and not isinstance(results[0], ResponseError):
                await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S)) - 1])

    def _count(self, sent: list[tuple[JobStream, Batch]], results: list[Append | Exception], seconds: float) -> None:
        self.metrics.event_write.observe(seconds)
        taken = sum(len(batch.events) for (_, batch), result in zip(sent, results, strict=True) if result is Append.OK)
        self.metrics.events_written.inc(taken)
        if any(isinstance(result, Exception) for result in results):
            self.metrics.event_write_failures.inc()

    async def _send(self, batches: list[Batch]) -> list[Append | Exception]:
        try:
            return await self._log.append_all(batches)
        except (RedisError, OSError, TimeoutError) as error:
            return [error] * len(batches)

    def _take(self, stream: JobStream, batch: Batch, result: Append | Exception) -> None:
        if stream.closed or stream.sent is not batch:
            return  # the attempt is over, or a rebuild has overtaken the batch
        match result:
            case Append.OK:
                stream.acknowledge(batch)
                self._mark(stream)
            case Append.FENCED | Append.ENDED:
                self._give_up(stream)
            case Append.LOST:
                # Nothing more is sent from here on, and no answer to what is on its way counts.
                text, tools = stream.snapshot()
                task = asyncio.create_task(self._rebuild(stream, text, tools), name=f"rebuild-{stream.job_id}")
                self._rebuilds[stream] = task
                task.add_done_callback(lambda _: self._rebuilds.pop(stream, None))
            case _:
                # Perhaps this log alone is refused: it is sent again by itself, and slows nobody else.
                asyncio.get_running_loop().call_later(RETRY_S[0], self._mark, stream)

    def _give_up(self, stream: JobStream) -> None:
        stream.close()
        on_lost = self._lost.pop(stream, None)
        if on_lost is not None:
            on_lost()

    async def _rebuild(self, stream: JobStream, text: str, tools: list[ToolNote]) -> None:
        """The log has lost entries of a running attempt: open a new epoch that says all that was shown again."""
        epoch = stream.epoch
        logger.warning("the event log lost entries; rebuilding it", job_id=stream.job_id, epoch=epoch)
        unknown = refused = False
        while True:
            try:
                if unknown:
                    # A commit of unknown fate is never repeated: what the row says is what happened.
                    rebuilt = await self._database.read(find_transition, stream.job_id, epoch + 1)
                    if rebuilt is not None or refused:
                        break
                rebuilt = await self._database.write(rebuild, stream.job_id, epoch, text, tools)
                break
            except TransitionRefused:
                rebuilt = None
                if not unknown:
                    break
                refused = True  # perhaps by our own commit, which arrived after the look
            except StorageUnavailable:
                unknown = True
                await asyncio.sleep(SQL_RETRY_S)
        if rebuilt is None or rebuilt.kind != "rebuild":
            self._give_up(stream)
        else:
            self.metrics.logs_rebuilt.inc()
            stream.reopen(rebuilt)
