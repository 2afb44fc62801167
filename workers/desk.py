"""The attempts of one worker process: rings come in, jobs are claimed, attempts run and are settled."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable

import structlog
from redis.exceptions import RedisError

from handlers.base import BaseAgentHandler
from handlers.factory import HandlerFactory
from handlers.tools import ToolRegistry
from schemas.errors import AgentInvocationError, StorageUnavailable
from schemas.ids import new_id
from schemas.settings import Settings
from storage.clock import MICROSECONDS, to_us
from storage.database import Database
from storage.event_log import EventLog
from storage.jobs.claim import Claim, claim
from storage.jobs.lease import Held
from storage.jobs.statements import Recorded
from storage.lanes import is_alone
from workers.agent_sessions import agent_session, allowed_tools, kept_progress
from workers.attempt import Attempt, StopReason
from workers.breaker_board import BreakerBoard
from workers.cancelling import cancel_all
from workers.current_job import CURRENT_JOB, CurrentJob
from workers.ending import Answered, Ending, Failed
from workers.event_writer import EventWriter
from workers.ring import ring
from workers.settlement import Settlement

logger = structlog.get_logger(__name__)


class Desk:
    """Claims jobs of one queue and runs them, as coroutines on the process's event loop."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        log: EventLog,
        writer: EventWriter,
        handlers: HandlerFactory,
        tools: ToolRegistry,
        lane: str | None = None,
    ) -> None:
        self._settings = settings
        #: What is claimed from: the queue's own lane, if left out.
        self._lane = settings.queue if lane is None else lane
        self._database = database
        self._log = log
        self._writer = writer
        self._handlers = handlers
        self._tools = tools
        self.breakers = BreakerBoard(settings, database, handlers.uses_model)
        self._settlement = Settlement(settings, database, writer)
        self._attempts: dict[Held, Attempt] = {}
        self._later: set[asyncio.Task[None]] = set()
        #: A shutdown has begun: nothing more is claimed.
        self.closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        #: Names this process in leases and `started` events; a restarted one is another worker.
        self.worker_id = f"{socket.gethostname()[:60]}-{os.getpid()}-{new_id()[-6:]}"

    async def look(self) -> None:
        """Claim and answer one job after the other until nothing is runnable: what a ring asks for."""
        while not self.closing and (claimed := await self.claim_next()) is not None:
            await self.run(claimed)

    async def claim_next(self) -> Claim | None:
        """Claim the next runnable job, to be run at once; None if there is none, or SQL does not answer."""
        try:
            return await self._database.write(
                claim,
                self._lane,
                self.worker_id,
                to_us(self._settings.lease_s),
                self.breakers.open_for,
                self.breakers.probe_us,
            )
        except StorageUnavailable as error:
            # If the claim did commit, nobody renews it and it expires. The reconciler rings again.
            logger.warning("no claim: SQL does not answer", error=str(error))
            return None

    async def run(self, claimed: Claim) -> None:
        """Run one attempt to its end and settle it."""
        attempt = Attempt(claimed)
        self._attempts[attempt.held] = attempt
        self._idle.clear()
        structlog.contextvars.bind_contextvars(
            job_id=claimed.job_id, session_id=claimed.session_id, attempt=claimed.attempt, tenant=claimed.tenant
        )
        if self.closing:
            attempt.stop(StopReason.SHUTDOWN)  # claimed while the shutdown began
        try:
            # Shielded: a cancelled actor must not leave an attempt without its settlement.
            await asyncio.shield(asyncio.create_task(self._run(attempt), name=f"run-{claimed.job_id}"))
        finally:
            structlog.contextvars.unbind_contextvars("job_id", "session_id", "attempt", "tenant")

    def held(self) -> list[Held]:
        """The attempts whose leases this process renews."""
        return list(self._attempts)

    def stop(self, held: Held, reason: StopReason, detail: str = "") -> None:
        """Stop one attempt, if it still runs."""
        attempt = self._attempts.get(held)
        if attempt is not None:
            attempt.stop(reason, detail)

    def cancel(self, job_id: str, detail: str) -> None:
        """Stop whatever attempt of a job runs here: somebody asked for it."""
        for held in self.held():
            if held[0] == job_id:
                self.stop(held, StopReason.CANCEL, detail)

    def begin_shutdown(self) -> None:
        """Claim nothing more, and release what still runs after the grace."""
        if not self.closing:
            self.closing = True
            logger.info("shutting down", running=len(self._attempts), grace_s=self._settings.shutdown_grace_s)
            asyncio.get_running_loop().call_later(self._settings.shutdown_grace_s, self._release_all)

    async def close(self) -> None:
        """Wait until every attempt is settled."""
        self.begin_shutdown()
        await self._idle.wait()
        await cancel_all(self._later)

    def _release_all(self) -> None:
        for attempt in list(self._attempts.values()):
            attempt.stop(StopReason.SHUTDOWN)

    async def _run(self, attempt: Attempt) -> None:
        claimed = attempt.claim
        CURRENT_JOB.set(CurrentJob(claimed.job_id, claimed.session_id, claimed.agent_framework))
        stream = self._writer.open(claimed.recorded, on_lost=lambda: attempt.stop(StopReason.LOST))
        left_s = (claimed.deadline_at - claimed.claimed_at) / MICROSECONDS
        deadline = asyncio.get_running_loop().call_later(left_s, attempt.stop, StopReason.DEADLINE)
        try:
            logger.info("attempt started", waited_ms=(claimed.claimed_at - claimed.due_at) // 1000)
            began = time.monotonic()
            metrics = self._writer.metrics
            metrics.attempt_started(claimed.queue, (claimed.claimed_at - claimed.due_at) / MICROSECONDS)
            ending = await attempt.run(self._handler_maker(claimed), stream, self._settings.attempt_timeout_s)
            ending = self.breakers.spare(claimed, ending)
            if isinstance(ending, Failed):
                # Before anybody can claim it again: a failed probe must not be taken for one whose worker is lost.
                await self._tell_breaker(claimed, ending)
            recorded = await self._settlement.settle(attempt, ending, stream)
            if recorded is not None:
                logger.info("attempt ended", transition=recorded.kind, epoch=recorded.epoch)
                self._ring_for(recorded)
            if stream.first_text_at is not None:
                metrics.first_text(claimed.queue, stream.first_text_at - began)
            if recorded is not None and recorded.terminal:
                waited_s = (claimed.claimed_at - claimed.accepted_at) / MICROSECONDS
                metrics.total(claimed.queue, waited_s + time.monotonic() - began)
            if not isinstance(ending, Failed):
                await self._tell_breaker(claimed, ending)
        except Exception:
            # Nothing above may lose a job: its lease lapses and another attempt follows.
            logger.exception("an attempt could not be settled")
        finally:
            deadline.cancel()
            del self._attempts[attempt.held]
            if not self._attempts:
                self._idle.set()

    async def _tell_breaker(self, claimed: Claim, ending: Ending) -> None:
        error = ending.error if isinstance(ending, Failed) else None
        await self.breakers.tell(claimed, error, answered=isinstance(ending, Answered))

    def _handler_maker(self, claimed: Claim) -> Callable[[], Awaitable[BaseAgentHandler]]:
        async def make() -> BaseAgentHandler:
            tools = self._tools.select(allowed_tools(claimed))
            continues = self._handlers.continues(claimed.agent_framework)
            progress = await kept_progress(claimed, self._database, continues=continues)
            session = agent_session(claimed, self._settings, self._database, tools, progress, continues=continues)
            handler = self._handlers.handler_for(session)
            if handler is None:
                raise AgentInvocationError("nobody answers this session", code="no_agent", retryable=False)
            return handler

        return make

    def _ring_for(self, recorded: Recorded) -> None:
        """Ring for the work a transition made: now for another queue or process, or when the retry is due."""
        if recorded.due_in_us:
            # Nobody is rung for a job that runs alone: it is looked for.
            if not is_alone(self._lane):
                self._ring_at(recorded.due_in_us / MICROSECONDS, self._lane, recorded.job_id)
        elif recorded.wakes is not None and (self.closing or recorded.wakes != self._lane):
            # Work of its own queue is claimed by `look`, which is about to come round again.
            self._ring_at(0.0, recorded.wakes, recorded.job_id)

    def _ring_at(self, delay_s: float, queue: str, job_id: str) -> None:
        task = asyncio.create_task(self._ring(delay_s, queue, job_id), name=f"ring-{job_id}")
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _ring(self, delay_s: float, queue: str, job_id: str) -> None:
        await asyncio.sleep(delay_s)
        try:
            await ring(self._log.redis, self._settings.namespace, queue, job_id)
        except (RedisError, OSError) as error:
            logger.warning("ring left to the reconciler", error=type(error).__name__)
