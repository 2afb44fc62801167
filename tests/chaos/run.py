"""One run, from the first process to the last check."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.errors import StorageUnavailable
from storage.clock import to_us
from tests.chaos.checker import Finding, check_all
from tests.chaos.clients import http_client
from tests.chaos.collect import collect, unfinished, untold, write_down
from tests.chaos.evidence import Evidence
from tests.chaos.faults import REDIS_FORGETS, faults_for, maker
from tests.chaos.part import PartFailed
from tests.chaos.producers import Producers
from tests.chaos.scale import Scale
from tests.chaos.schedule import Schedule, Step
from tests.chaos.stage import Stage

LOOK_S = 0.2
#: How long the logs may take to get the events that were left to the reconciler.
TOLD_S = 30.0
Say = Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    """What a run showed: how often each fault was made, and what each check found."""

    dialect: str
    made: Counter[str]
    evidence: Evidence
    findings: list[Finding] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not any(finding.wrong for finding in self.findings)


async def run(
    folder: Path, dialect: str, *, seed: int, jobs: int, minutes: float, only: Iterable[str] = (), say: Say = print
) -> Outcome:
    """Run all of it on one database, with all files in `folder`, which is there.

    Raises PartFailed if a process cannot even be started.
    """
    scale = Scale.of(minutes)
    schedule = Schedule.of(seed, jobs, scale, faults_for(dialect, only))
    say(f"{dialect}: starting")
    async with Stage(folder, dialect, scale) as stage:
        return await _Run(stage, schedule, say).run()


class _Run:
    def __init__(self, stage: Stage, schedule: Schedule, say: Say) -> None:
        self._stage = stage
        self._schedule = schedule
        self._say = say
        self._evidence = Evidence()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._errors: list[BaseException] = []

    async def run(self) -> Outcome:
        async with http_client() as http:
            producers = Producers(self._stage, http, self._evidence, self._schedule.seed, self._spawn)
            for number, conversation in enumerate(self._schedule.conversations):
                begin_s = conversation.at * self._stage.scale.faults_s
                self._spawn(_later(begin_s, producers.hold(number, conversation)))
            try:
                await self._make_faults()
                self._say(f"{self._stage.dialect}: no more faults; waiting for the jobs to end")
                await self._drain()
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._all_is_told()
        await collect(self._stage, self._evidence)
        await write_down(self._stage, self._evidence)
        await self._end_in_order()
        if self._errors:
            raise self._errors[0]
        made = Counter(one.fault for one in self._stage.timeline.happenings)
        return Outcome(self._stage.dialect, made, self._evidence, check_all(self._evidence))

    def _spawn(self, work: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._look_at)

    def _look_at(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)

    async def _make_faults(self) -> None:
        """One step after the other until the time is over and each fault was made once."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._stage.scale.faults_s
        for number, step in enumerate(self._schedule.steps):
            if loop.time() >= until and number >= self._schedule.round_size:
                return
            if self._errors:
                return
            await asyncio.sleep(step.pause_s)
            self._start_what_ended()
            await self._take(number, step)

    async def _take(self, number: int, step: Step) -> None:
        self._say(f"{self._stage.dialect}: {' + '.join(fault.name for fault in step.faults)}")
        made: list[Awaitable[None]] = [
            maker(fault, self._stage.dialect)(
                self._stage, random.Random(f"{self._schedule.seed}/{number}/{fault.name}")
            )
            for fault in step.faults
        ]
        results = await asyncio.gather(*made, return_exceptions=True)
        for happening in self._stage.timeline.happenings:
            if happening.end is None:
                self._stage.end(happening)  # it failed, but it is over
        for result in results:
            if isinstance(result, PartFailed):
                self._evidence.unruly.append(str(result))
            elif isinstance(result, BaseException):
                raise result

    def _start_what_ended(self) -> None:
        """What ended on its own is started again, as a supervisor does; it is told of at the end."""
        stage = self._stage
        for part in (*stage.workers, *stage.gateways, stage.model):
            if part.running:
                continue
            self._evidence.unruly.append(f"{part.name} ended on its own:\n{part.tail()[-1500:]}")
            if part in stage.workers:
                stage.start_worker(part)
            else:
                part.start()

    async def _drain(self) -> None:
        """Wait until every producer, client and job has come to its end, within the time there is."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._stage.scale.drain_s
        while loop.time() < give_up and not self._errors:
            self._start_what_ended()
            if not self._tasks:
                try:
                    if not await unfinished(self._stage):
                        return
                except StorageUnavailable:
                    pass
            await asyncio.sleep(LOOK_S)

    async def _all_is_told(self) -> None:
        """Wait for the logs of jobs that ended after Redis forgot for the last time."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + TOLD_S
        # A job that ended before may bear a later time: the clock may have been stepped back in between.
        slack_us = to_us(self._stage.scale.step_s) if self._stage.dialect == "postgresql" else 0
        since = self._evidence.logs_since = self._stage.timeline.last_end(REDIS_FORGETS) + slack_us
        while await untold(self._stage, since):
            if loop.time() > give_up:
                return  # the check of the logs tells of it
            await asyncio.sleep(LOOK_S)

    async def _end_in_order(self) -> None:
        try:
            for part in (*self._stage.workers, *self._stage.gateways):
                await part.ready()  # or the signal may come before there is anybody to hear it
            codes = await self._stage.stop_all()
        except PartFailed as error:
            self._evidence.unruly.append(str(error))
            return
        self._evidence.unruly += [f"{name} ended with exit code {code}" for name, code in codes.items() if code != 0]


async def _later(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        work.close()
        raise
    await work
