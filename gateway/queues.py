"""Queues and breakers over HTTP: what holds jobs back, and how to let them go."""

from __future__ import annotations

import asyncio

import structlog
from pydantic import ValidationError
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.types import ASGIApp

from gateway.operation import Answer, Operation, Parameter, json_response
from gateway.requests import queue_name, read_body, read_object
from gateway.services import Services
from schemas.border_text import parse_json
from schemas.chat_job import request_error
from schemas.job_event import rfc3339
from schemas.queue_view import BreakerResetRequest, Breakers, BreakerView, PauseRequest, Queues, QueueView
from storage.breakers import list_breakers, reset
from storage.jobs.statements import read_clock
from storage.overview import QueueCounts, queue_counts
from storage.queues import pause, resume
from workers.ring import ring

#: Rings after a resume, at most: every worker process that hears one claims until it is full.
MOST_RINGS = 100
RING_TIMEOUT_S = 1.0

_NAME = Parameter("name", "The queue's name.", where="path")

logger = structlog.get_logger(__name__)


class QueueRoutes:
    """`/v1/queues` and `/v1/breakers`. They are the operator's, so no tenant's."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/v1/queues",
                "list_queues",
                "The queues, over all tenants",
                self._list,
                {200: Answer("All that have unfinished jobs or are paused.", Queues)},
            ),
            Operation(
                "POST",
                "/v1/queues/{name}/pause",
                "pause_queue",
                "Let nothing of a queue start",
                self._pause,
                {200: Answer("The queue.", QueueView)},
                description="Jobs are accepted all the same, those that run go on, and deadlines go on passing. A "
                "queue that is paused already keeps its reason.",
                parameters=(_NAME,),
                body=PauseRequest,
                body_required=False,
            ),
            Operation(
                "POST",
                "/v1/queues/{name}/resume",
                "resume_queue",
                "Let a queue's jobs start again",
                self._resume,
                {200: Answer("The queue, also if it was not paused.", QueueView)},
                parameters=(_NAME,),
            ),
            Operation(
                "GET",
                "/v1/breakers",
                "list_breakers",
                "The providers and models whose calls have failed lately",
                self._list_breakers,
                {200: Answer("All of them.", Breakers)},
            ),
            Operation(
                "POST",
                "/v1/breakers/reset",
                "reset_breaker",
                "Close a breaker by hand",
                self._reset_breaker,
                {200: Answer("Those that are left.", Breakers)},
                description="The jobs that it held are due again within a second or two.",
                body=BreakerResetRequest,
                problems=(404,),
            ),
        ]

    async def _list(self, request: Request) -> ASGIApp:
        counts = await self._counts()
        return json_response(Queues(data=[_view(name, counts[name]) for name in sorted(counts)]))

    async def _pause(self, request: Request) -> ASGIApp:
        name = queue_name(request)
        body = await read_body(request, self._services.settings.request_max_bytes)
        try:
            asked = PauseRequest.model_validate(parse_json(body) if body.strip() else {})
        except ValidationError as error:
            raise request_error(error) from None
        await self._services.database.write(pause, name, asked.reason)
        return json_response(_view(name, (await self._counts()).get(name, QueueCounts())))

    async def _resume(self, request: Request) -> ASGIApp:
        name = queue_name(request)
        was_paused = await self._services.database.write(resume, name)
        counts = (await self._counts()).get(name, QueueCounts())
        if was_paused and counts.due:
            await self._ring(name, min(counts.due, MOST_RINGS))
        return json_response(_view(name, counts))

    async def _ring(self, name: str, times: int) -> None:
        try:
            async with asyncio.timeout(RING_TIMEOUT_S):
                await ring(self._services.log.redis, self._services.settings.namespace, name, times=times)
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("ringing is left to the reconciler", queue=name, error=type(error).__name__)

    async def _list_breakers(self, request: Request) -> ASGIApp:
        rows = await self._services.database.read(list_breakers)
        return json_response(Breakers(data=[BreakerView.of_row(row) for row in rows]))

    async def _reset_breaker(self, request: Request) -> ASGIApp:
        body = await read_object(request, self._services.settings.request_max_bytes)
        try:
            asked = BreakerResetRequest.model_validate(body)
        except ValidationError as error:
            raise request_error(error) from None
        await self._services.database.write(reset, asked.name)
        return await self._list_breakers(request)

    async def _counts(self) -> dict[str, QueueCounts]:
        database = self._services.database
        return await database.read(queue_counts, await database.read(read_clock))


def _view(name: str, counts: QueueCounts) -> QueueView:
    paused = counts.paused_at is not None
    return QueueView(
        name=name,
        queued=counts.queued,
        due=counts.due,
        running=counts.running,
        paused=paused,
        reason=counts.pause_reason if paused else None,
        paused_at=None if counts.paused_at is None else rfc3339(counts.paused_at),
    )
