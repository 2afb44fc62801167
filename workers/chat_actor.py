"""The one actor: a message is a ring, or a whole ChatJob from a producer that has nothing but Redis."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import structlog

from schemas.border_text import clean_json, clean_text
from schemas.chat_job import DEFAULT_TENANT, REQUEST_MAX_BYTES, ChatJob
from schemas.errors import RequestError, RequestTooLarge, StorageUnavailable
from schemas.ids import canonical_id
from schemas.settings import Settings
from storage.database import Database
from storage.jobs.refuse import refuse
from storage.quarantine import keep
from workers.desk import Desk
from workers.hand_back import HandBack
from workers.producer import Producer

#: A ring carries the id of the job it is for, as a hint to whoever reads the queue; a ChatJob has more than that.
_RING_FIELDS = frozenset({"job_id"})
#: Pause between tries to accept while SQL does not answer: the message is not acknowledged before.
SQL_RETRY_S = 1.0
_TENANT_MAX = 64

logger = structlog.get_logger(__name__)


class ChatActor:
    """Takes queue messages, each until nothing is runnable any more."""

    def __init__(self, settings: Settings, database: Database, producer: Producer, desk: Desk) -> None:
        self._settings = settings
        self._database = database
        self._producer = producer
        self._desk = desk

    async def take(self, arguments: tuple[Any, ...], message_id: str) -> None:
        """Take one message by its arguments. When this returns, the message may be acknowledged.

        Raises HandBack if other workers are to have it.

        `message_id` is a UUID, the same whenever the same message comes again.
        """
        argument = arguments[0] if len(arguments) == 1 else None
        is_ring = isinstance(argument, dict) and not argument.keys() - _RING_FIELDS
        if self._desk.closing:
            raise HandBack
        if not is_ring:
            await self._insist(arguments, message_id)
        await self._desk.look()

    async def _insist(self, arguments: tuple[Any, ...], message_id: str) -> None:
        """Accept or refuse what the message asks for, however long SQL is away; at a shutdown it goes back."""
        while True:
            try:
                await self._accept(arguments, message_id)
                return
            except StorageUnavailable as error:
                logger.warning("a raw producer's message waits: SQL does not answer", error=str(error))
            if self._desk.closing:
                raise HandBack
            await asyncio.sleep(SQL_RETRY_S)

    async def _accept(self, arguments: tuple[Any, ...], message_id: str) -> None:
        """A raw producer's job: inserting it is its acceptance, and a refusal is a job too, where it can be seen."""
        job_id: str | None = None
        tenant = DEFAULT_TENANT
        raw = json.dumps(arguments).encode("utf-8", "surrogatepass")
        body: dict[str, Any] = {}
        try:
            body = _object(arguments)
            job_id, tenant = _usable_id(body), _usable_tenant(body)
            if len(raw) > REQUEST_MAX_BYTES:
                body = {}
                raise RequestTooLarge(f"the job is larger than {REQUEST_MAX_BYTES} bytes")
            body = clean_json(body)
            # A message that comes again must not be answered again, also if its producer chose no id.
            given = {"queue": self._settings.queue, "job_id": message_id, **body}
            accepted = await self._producer.accept(ChatJob.from_request(given))
        except RequestError as error:
            if job_id is None:
                await self._keep(raw, error.to_job_error().message)
                return
            try:
                await self._refuse(tenant, job_id, body, error)
            except StorageUnavailable:
                raise
            except Exception:
                logger.exception("a refusal cannot be stored", job_id=job_id)
                await self._keep(raw, str(error))
        except StorageUnavailable:
            raise
        except Exception as error:
            # A fault of ours; the request must not be lost by it.
            logger.exception("a raw producer's message cannot be taken", job_id=job_id)
            await self._keep(raw, f"it could not be taken: {type(error).__name__}")
        else:
            logger.info("accepted from a raw producer", job_id=accepted.job_id, created=accepted.created)

    async def _keep(self, raw: bytes, reason: str) -> None:
        await self._database.write(keep, self._settings.queue, reason, raw)
        self._producer.metrics.quarantined(self._settings.queue)
        logger.warning("kept an unusable message in quarantine", reason=reason)

    async def _refuse(self, tenant: str, job_id: str, body: dict[str, Any], error: RequestError) -> None:
        queue, framework = self._settings.queue, self._settings.agent_framework
        refusal = await self._database.write(refuse, tenant, job_id, queue, framework, body, error.to_job_error())
        logger.warning("refused a raw producer's job", job_id=job_id, code=error.code, field=error.field)
        for recorded in refusal:
            await self._producer.announce(recorded)


def _object(arguments: tuple[Any, ...]) -> dict[str, Any]:
    if len(arguments) != 1 or not isinstance(arguments[0], dict):
        raise RequestError("the message's arguments are not one object")
    return arguments[0]


def _usable_id(argument: dict[str, Any]) -> str | None:
    """The id a producer chose, if it is one; without it nobody could ever ask what became of the job."""
    try:
        return canonical_id(clean_text(argument["job_id"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _usable_tenant(argument: dict[str, Any]) -> str:
    tenant = argument.get("tenant")
    return clean_text(tenant) if isinstance(tenant, str) and 0 < len(tenant) <= _TENANT_MAX else DEFAULT_TENANT
