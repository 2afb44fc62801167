"""Watches from a thread of its own whether the event loop moves, and names who holds it up.

A handler or a tool that computes, sleeps or waits for the network without `await` stops every other answer of its
process. Nobody on the loop can report that: it is the loop that stands still.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import structlog

from workers.current_job import JobTasks
from workers.stack_place import place_of

#: How often the loop shows that it moves, and how often that is looked at.
BEAT_S = 0.25
LOOK_S = 0.25
#: A loop that has not moved for longer is reported …
BLOCKED_S = 1.0
#: … and reported again this often while it stands still.
REPEAT_S = 10.0

logger = structlog.get_logger(__name__)


class LoopWatch:
    """Made, started and closed on the loop that it watches."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._tasks = JobTasks()
        self._previous_factory = self._loop.get_task_factory()
        self._beats: asyncio.Task[None] | None = None
        self._last_beat = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop-watch", daemon=True)
        #: What was said of the blockage that lasts, and when it is to be said again; None while the loop moves.
        self._about: dict[str, Any] | None = None
        self._repeat_at = 0.0
        #: When it began.
        self._began = 0.0

    def start(self) -> None:
        """Start watching. Tasks that are made from now on are known by their job."""
        self._loop.set_task_factory(self._tasks)
        self._beats = asyncio.create_task(self._beat(), name="loop-beat")
        self._thread.start()

    async def close(self) -> None:
        self._stop.set()
        if self._beats is not None:
            self._beats.cancel()
            self._loop.set_task_factory(self._previous_factory)
            await asyncio.to_thread(self._thread.join)

    @property
    def lag_s(self) -> float:
        """How late the loop is at this moment, in seconds; 0 while it moves. May be asked from any thread."""
        return max(0.0, time.monotonic() - self._last_beat - BEAT_S)

    async def _beat(self) -> None:
        while True:
            self._last_beat = time.monotonic()
            await asyncio.sleep(BEAT_S)

    def _run(self) -> None:
        looked = time.monotonic()
        #: Nobody is blamed for time in which this thread stood still as well.
        blame_from = looked
        while not self._stop.wait(LOOK_S):
            now = time.monotonic()
            if now - looked > LOOK_S + BLOCKED_S:
                logger.warning("the whole process stood still", seconds=round(now - looked, 1), **self._who())
                blame_from = now
            looked = now
            try:
                self._look(now, blame_from)
            except Exception:
                # Whatever is odd about a stack must not end the watch.
                logger.exception("the event loop could not be looked at")

    def _look(self, now: float, blame_from: float) -> None:
        beat = self._last_beat
        since = max(beat, blame_from)
        blocked_s = now - since - BEAT_S
        if blocked_s <= BLOCKED_S:
            if self._about is not None:
                logger.error("the event loop moves again", **{**self._about, "seconds": self._lasted(beat)})
                self._about = None
            return
        if self._about is None:
            self._began = since
        elif now < self._repeat_at:
            return
        self._about = {**self._who(), "seconds": round(blocked_s, 1)}
        self._repeat_at = now + REPEAT_S
        logger.error("the event loop is blocked", **self._about)

    def _lasted(self, beat: float) -> float:
        """How long the blockage was that the loop's newest beat has ended."""
        return round(max(0.0, beat - self._began - BEAT_S), 1)

    def _who(self) -> dict[str, Any]:
        """Where the loop stands, and for which job, as fields of a log line."""
        job = self._tasks.job_of(asyncio.current_task(self._loop))
        about: dict[str, Any] = {"place": place_of(self._loop_thread)}
        if job is not None:
            about |= {"framework": job.agent_framework, "job_id": job.job_id, "session_id": job.session_id}
        return about
