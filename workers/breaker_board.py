"""What this process knows of breakers: which are open, and what its attempts have to tell them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import urlsplit

import structlog

from schemas.errors import ConfigurationError, JobError, StorageUnavailable
from schemas.settings import Settings
from storage.breakers import BreakerRules, end_probe, known, record_failure, record_success
from storage.clock import to_us
from storage.database import Database
from storage.jobs.claim import Claim
from workers.ending import Ending, Failed

#: What a provider does wrong, by the codes of graph/failures.py. A request it refuses, or asks to wait for, is none.
PROVIDER_FAILURES = frozenset(
    {"connection", "timeout", "provider_error", "truncated", "empty_stream", "authentication", "insufficient_quota"}
)
#: Where a model without an address of its own is called.
_DEFAULT_HOST = "api.openai.com"

logger = structlog.get_logger(__name__)


class BreakerBoard:
    """Keeps a copy of the breakers, about a second old, so that a claim costs nothing while all are closed."""

    def __init__(self, settings: Settings, database: Database, uses_model: Callable[[str], bool]) -> None:
        self._settings = settings
        self._database = database
        self._uses_model = uses_model
        self._rules = BreakerRules(
            settings.breaker_failures, to_us(settings.breaker_pause_s), to_us(settings.breaker_longest_pause_s)
        )
        #: Breakers that count something, and whether they are open.
        self._known: dict[str, bool] = {}
        #: A probe that is not heard of for so long, in microseconds, is given up on.
        self.probe_us = to_us(settings.attempt_timeout_s + 2 * settings.lease_s)

    async def run(self) -> None:
        """Keep the copy fresh until cancelled."""
        while True:
            try:
                self._known = await self._database.read(known)
            except StorageUnavailable:
                logger.debug("the breakers cannot be read")
            except Exception:
                logger.exception("the breakers cannot be read")
            await asyncio.sleep(self._settings.reconcile_s)

    def name_of(self, framework: str, model: str | None) -> str | None:
        """`<host>/<model>` of the provider's model that a job calls; None if it calls none."""
        if not self._uses_model(framework):
            return None
        try:
            target = self._settings.model_target(model)
        except ConfigurationError:
            return None
        host = urlsplit(target.base_url).netloc.rpartition("@")[2] if target.base_url else _DEFAULT_HOST
        return f"{host}/{target.model}"

    def open_for(self, framework: str, model: str | None) -> str | None:
        """The name of the breaker that a job of this framework and model meets, if it is open."""
        if not any(self._known.values()):
            return None
        name = self.name_of(framework, model)
        return name if name is not None and self._known.get(name) else None

    def spare(self, claim: Claim, ending: Ending) -> Ending:
        """The ending of an attempt, uncharged if it was a probe whose provider fails still: it tried for the others."""
        if claim.probes and isinstance(ending, Failed) and ending.error.code in PROVIDER_FAILURES:
            soon = self._settings.retry_delay_s  # then the breaker holds it, and lets it go with the others
            return replace(ending, charged=False, retry_after=max(ending.retry_after or 0.0, soon))
        return ending

    async def tell(self, claim: Claim, error: JobError | None, *, answered: bool) -> None:
        """Tell the breaker how an attempt ended: with a failure, with an answer, or without a word of the provider."""
        failed = error is not None and error.code in PROVIDER_FAILURES
        if not failed and not self._known:
            return
        name = self.name_of(claim.agent_framework, claim.model)
        if name is None or not (failed or name in self._known):
            return
        try:
            if failed:
                assert error is not None
                await self._failed(name, claim.job_id, error)
            elif answered:
                await self._answered(name)
            else:
                await self._database.write(end_probe, name, claim.job_id)
        except StorageUnavailable as unavailable:
            logger.warning("a breaker was not told", breaker=name, error=str(unavailable))

    async def _failed(self, name: str, job_id: str, error: JobError) -> None:
        was_open = self._known.get(name, False)
        self._known[name] = await self._database.write(record_failure, name, job_id, error, self._rules)
        if self._known[name] and not was_open:
            logger.error("a provider keeps failing; its jobs wait", breaker=name, code=error.code)

    async def _answered(self, name: str) -> None:
        was_open = self._known.pop(name, False)
        await self._database.write(record_success, name)
        if was_open:
            logger.warning("a provider answers again", breaker=name)
