"""Accepting a job: commit it, then tell the log and ring. Used by the gateway, and by a worker for a raw producer."""

from __future__ import annotations

import asyncio

import structlog
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from schemas.chat_job import ChatJob
from schemas.errors import InvalidRequest
from schemas.frameworks import NO_FRAMEWORK
from schemas.settings import Settings
from storage.database import Database
from storage.event_log import Batch, EventLog
from storage.jobs.accept import Accepted, accept
from storage.jobs.interrupt import REASON
from storage.jobs.statements import Recorded
from workers.control import send_cancel
from workers.metrics import Metrics
from workers.ring import add_ring

#: How long telling Redis may hold up an answer. The reconciler does what this did not.
TELL_TIMEOUT_S = 1.0

logger = structlog.get_logger(__name__)


class Producer:
    """Accepts jobs and announces transitions that are made outside of an attempt."""

    def __init__(self, settings: Settings, database: Database, log: EventLog, metrics: Metrics | None = None) -> None:
        self.metrics = metrics or Metrics()
        self._settings = settings
        self._database = database
        self._log = log

    def check(self, job: ChatJob) -> None:
        """Raise InvalidRequest if the job names a framework, a model or a tool that nobody here knows."""
        self.check_names(framework=job.agent_framework, model=job.model, tools=job.tools)
        if job.fallback_model is not None and not self._settings.knows_model(job.fallback_model):
            known = ", ".join(self._settings.known_models())
            raise InvalidRequest(f"unknown model {job.fallback_model!r}; known are: {known}", field="fallback_model")
        if job.agent_framework == NO_FRAMEWORK:
            raise InvalidRequest("nobody answers a job whose agent_framework is none", field="agent_framework")

    def check_names(self, *, framework: str | None, model: str | None, tools: list[str] | None) -> None:
        """The same for the settings of a session, where the framework `none` is allowed."""
        frameworks = [name for name, _ in self._settings.framework_choices]
        if framework is not None and framework not in frameworks:
            raise InvalidRequest(
                f"unknown framework {framework!r}; known are: {', '.join(frameworks)}", field="agent_framework"
            )
        if model is not None and not self._settings.knows_model(model):
            known = ", ".join(self._settings.known_models())
            raise InvalidRequest(f"unknown model {model!r}; known are: {known}", field="model")
        for index, name in enumerate(tools or ()):
            if name not in self._settings.tool_names:
                known = ", ".join(self._settings.tool_names)
                raise InvalidRequest(f"unknown tool {name!r}; known are: {known}", field=f"tools.{index}")

    async def accept(self, job: ChatJob) -> Accepted:
        """Accept a job and announce it. It is accepted when this returns, even if Redis is down.

        Raises what `check` and `storage.jobs.accept` raise, and StorageUnavailable.
        """
        self.check(job)
        accepted = await self._database.write(accept, job, self._settings.agent_framework)
        if accepted.recorded is not None:
            await self.announce(accepted.recorded)
        for recorded in accepted.interrupted.cancelled:
            await self.announce(recorded)
        for job_id in accepted.interrupted.stopping:
            await self.tell_to_stop(job_id, REASON)
        return accepted

    async def tell_to_stop(self, job_id: str, reason: str) -> None:
        """Tell the workers that a running job is to stop; Redis may be down, then the next renewal of leases tells."""
        try:
            async with asyncio.timeout(TELL_TIMEOUT_S):
                await send_cancel(self._log.redis, self._settings.namespace, job_id, reason)
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("a cancel is left to the leases", job_id=job_id, error=type(error).__name__)

    async def announce(self, recorded: Recorded) -> None:
        """Count a transition that was just committed, append its event and ring for its work; Redis may be down."""
        self.metrics.moved(recorded, recorded.queue)
        batch = Batch(recorded.job_id, recorded.epoch, 0, (recorded.event,), recorded.terminal)

        def also_ring(pipeline: Pipeline) -> None:
            # In one round trip: what waits for the job waits for both.
            if recorded.wakes is not None:
                add_ring(pipeline, self._settings.namespace, recorded.wakes, recorded.job_id)

        try:
            async with asyncio.timeout(TELL_TIMEOUT_S):
                await self._log.append(batch, also_ring)
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("announcement left to the reconciler", job_id=recorded.job_id, error=type(error).__name__)
