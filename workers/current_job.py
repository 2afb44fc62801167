"""Which job a task of the event loop works for, to be asked from another thread.

A task's context says it, but until Python 3.12 only the task itself can read that. So each task that is made while a
job is worked for is noted down: the graph's and the tools' too, whatever their names are.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary


@dataclass(frozen=True, slots=True)
class CurrentJob:
    """The attempt in whose name code runs."""

    job_id: str
    session_id: str
    agent_framework: str


#: Set for everything that an attempt starts.
CURRENT_JOB: ContextVar[CurrentJob | None] = ContextVar("chatmill_current_job", default=None)


class JobTasks:
    """A task factory that remembers the job of each task it makes; costs half a microsecond a task."""

    def __init__(self) -> None:
        self._jobs: WeakKeyDictionary[asyncio.Task[Any], CurrentJob] = WeakKeyDictionary()

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coro: Any, *, context: Context | None = None, **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context, **options)
        job = CURRENT_JOB.get() if context is None else context.get(CURRENT_JOB)
        if job is not None:
            self._jobs[task] = job
        return task

    def job_of(self, task: asyncio.Task[Any] | None) -> CurrentJob | None:
        """The job that a task works for, if any; may be called from any thread."""
        return None if task is None else self._jobs.get(task)
