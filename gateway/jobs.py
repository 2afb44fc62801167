"""Jobs over HTTP: accept, look at, list, cancel."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from typing import Any, get_args

import structlog
from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp

from gateway.events import EventStream, close_when_gone
from gateway.follower import Event
from gateway.operation import JOB_ID, Answer, Operation, Parameter, json_response
from gateway.requests import (
    IDEMPOTENCY_HEADER,
    PAGE_PARAMETERS,
    choice,
    flag,
    job_id_of,
    number,
    optional_id,
    optional_queue,
    page_of,
    path_id,
    read_body,
    read_object,
    tenant_of,
)
from gateway.services import Services
from schemas.border_text import parse_json
from schemas.cancel_request import JobCancelRequest
from schemas.chat_job import ChatJob, request_error
from schemas.job_event import EventId
from schemas.job_view import JobPage, JobStatus, JobSummary, JobView
from storage.jobs.cancel import request_cancel
from storage.jobs.views import ENDED_STATUSES, get_job, list_jobs

MAX_WAIT_S = 60.0
#: Past every event of an epoch: whoever waits for a job to end skips its tokens.
LAST_SEQ = 10**18 - 1

_STATUSES: tuple[str, ...] = get_args(JobStatus)

logger = structlog.get_logger(__name__)


class JobRoutes:
    """`/v1/jobs` and what is below it, but the events."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                "/v1/jobs",
                "create_job",
                "Have a chat request answered",
                self._create,
                {
                    202: Answer("Accepted: the job is committed.", JobView, headers={"Location": "The job."}),
                    200: Answer("The same request was accepted before; or, with `stream`, its events.", JobView, True),
                },
                description="The body is JSON whatever its content type. `job_id`, or the header, makes it idempotent.",
                parameters=(
                    Parameter("stream", "Answer with the job's events instead of the job.", {"type": "boolean"}),
                    Parameter(
                        IDEMPOTENCY_HEADER,
                        "Instead of a `job_id`: the same key with the same body is the same job.",
                        {"type": "string", "minLength": 1, "maxLength": 255},
                        "header",
                    ),
                ),
                body=ChatJob,
                problems=(404, 409),
            ),
            Operation(
                "GET",
                "/v1/jobs",
                "list_jobs",
                "The jobs, the newest first",
                self._list,
                {200: Answer("A page of them.", JobPage)},
                parameters=(
                    Parameter("status", "Only those.", {"enum": list(_STATUSES)}),
                    Parameter("session_id", "Only those of this session.", {"type": "string", "format": "uuid"}),
                    Parameter("queue", "Only those of this queue."),
                    *PAGE_PARAMETERS,
                ),
            ),
            Operation(
                "GET",
                "/v1/jobs/{id}",
                "get_job",
                "A job: its state, and its answer or error once it has one",
                self._get,
                {200: Answer("The job.", JobView)},
                parameters=(
                    JOB_ID,
                    Parameter(
                        "wait",
                        "Seconds to wait for the job to end before it is shown as it is.",
                        {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S, "default": 0},
                    ),
                ),
                problems=(404,),
            ),
            Operation(
                "POST",
                "/v1/jobs/{id}/cancel",
                "cancel_job",
                "Stop a job",
                self._cancel,
                {
                    200: Answer("It is cancelled, or had ended before.", JobView),
                    202: Answer("It is being stopped: its terminal event tells when it is.", JobView),
                },
                description="What was answered by then is saved and marked. An answer that is saved first wins.",
                parameters=(JOB_ID,),
                body=JobCancelRequest,
                body_required=False,
                problems=(404,),
            ),
        ]

    async def _create(self, request: Request) -> ASGIApp:
        streamed = flag(request, "stream")
        body = await read_object(request, self._services.settings.request_max_bytes)
        job = ChatJob.from_request({**job_id_of(request, body), "tenant": tenant_of(request)})
        location = f"/v1/jobs/{job.job_id}"
        if streamed:
            return await self._create_streamed(job, location)
        accepted = await self._services.producer.accept(job)
        view = await self._view(job.tenant, job.job_id)
        return json_response(view, 202 if accepted.created else 200, {"location": location})

    async def _create_streamed(self, job: ChatJob, location: str) -> ASGIApp:
        first: list[Event] = []
        with ExitStack() as stack:
            # Subscribing goes on while SQL commits, so nothing keeps the first token waiting.
            follower = stack.enter_context(self._services.hub.follow(job.tenant, job.job_id))
            accepted = await self._services.producer.accept(job)
            if accepted.recorded is not None:
                queued = EventId(accepted.recorded.epoch, 1)
                first = [Event(queued, accepted.recorded.event)]
                follower.skip_to(queued)
            stack.pop_all()  # the stream lets go of it
            heartbeat_s = self._services.settings.heartbeat_s
            return EventStream(follower, heartbeat_s=heartbeat_s, first=first, location=location)

    async def _list(self, request: Request) -> ASGIApp:
        limit, before = page_of(request)
        rows = await self._services.database.read(
            list_jobs,
            tenant_of(request),
            limit=limit + 1,
            before=before,
            status=choice(request, "status", _STATUSES),
            session_id=optional_id(request, "session_id"),
            queue=optional_queue(request),
        )
        jobs = [JobSummary.of_row(row) for row in rows[:limit]]
        return json_response(JobPage(data=jobs, next=jobs[-1].id if len(rows) > limit else None))

    async def _get(self, request: Request) -> ASGIApp:
        tenant, job_id = tenant_of(request), path_id(request, "job")
        wait_s = number(request, "wait", default=0, least=0, most=MAX_WAIT_S)
        row = await self._services.database.read(get_job, tenant, job_id)
        if wait_s and row["status"] not in ENDED_STATUSES:
            await self._wait_for_end(request, tenant, row, wait_s)
            row = await self._services.database.read(get_job, tenant, job_id)
        return json_response(JobView.of_row(row))

    async def _wait_for_end(self, request: Request, tenant: str, row: dict[str, Any], wait_s: float) -> None:
        after = EventId(row["epoch"], LAST_SEQ)
        with self._services.hub.follow(tenant, row["id"], after) as follower:
            gone = close_when_gone(follower, request.receive)
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        while await follower.next(wait_s) is not None:
                            pass
            finally:
                gone.cancel()

    async def _cancel(self, request: Request) -> ASGIApp:
        tenant, job_id = tenant_of(request), path_id(request, "job")
        reason = (await self._read_cancel(request)).reason
        asked = await self._services.database.write(request_cancel, tenant, job_id, reason)
        if asked.recorded is not None:
            await self._services.producer.announce(asked.recorded)
        elif asked.result == "stopping":
            await self._services.producer.tell_to_stop(job_id, reason)
        view = await self._view(tenant, job_id)
        return json_response(view, 200 if view.status in ENDED_STATUSES else 202)

    async def _read_cancel(self, request: Request) -> JobCancelRequest:
        body = await read_body(request, self._services.settings.request_max_bytes)
        try:
            return JobCancelRequest.model_validate(parse_json(body) if body.strip() else {})
        except ValidationError as error:
            raise request_error(error) from None

    async def _view(self, tenant: str, job_id: str) -> JobView:
        return JobView.of_row(await self._services.database.read(get_job, tenant, job_id))
