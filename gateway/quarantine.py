"""The quarantine over HTTP: messages nobody could read, looked at, put back on their queue, or dropped."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp

from gateway.operation import Answer, Operation, Parameter, json_response
from gateway.requests import (
    PAGE_PARAMETERS,
    choice,
    optional_queue,
    page_of,
    path_id,
    read_body,
    tenant_of,
)
from gateway.services import Services
from schemas.border_text import parse_json
from schemas.chat_job import ChatJob, request_error
from schemas.errors import InvalidRequest, RequestError
from schemas.quarantine_view import (
    EntryState,
    QuarantinePage,
    QuarantineSummary,
    QuarantineView,
    Requeued,
    RequeueRequest,
)
from storage.quarantine import DROPPED, get_entry, get_lying, list_entries, resolve
from workers.requeue import Requeuer

_STATES: tuple[str, ...] = get_args(EntryState)
_ENTRY_ID = Parameter("id", "The entry's id.", {"type": "string", "format": "uuid"}, "path")


class QuarantineRoutes:
    """`/v1/quarantine` and what is below it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/v1/quarantine",
                "list_quarantine",
                "The messages in quarantine, the newest first",
                self._list,
                {200: Answer("A page of them.", QuarantinePage)},
                parameters=(
                    Parameter(
                        "state",
                        "Those nobody has decided about, or those that were requeued or dropped.",
                        {"enum": list(_STATES), "default": "lying"},
                    ),
                    Parameter("queue", "Only those of this queue."),
                    *PAGE_PARAMETERS,
                ),
            ),
            Operation(
                "GET",
                "/v1/quarantine/{id}",
                "get_quarantined",
                "A message in quarantine, with its bytes",
                self._get,
                {200: Answer("The entry.", QuarantineView)},
                parameters=(_ENTRY_ID,),
                problems=(404,),
            ),
            Operation(
                "POST",
                "/v1/quarantine/{id}/requeue",
                "requeue_quarantined",
                "Put a message back on its queue, perhaps corrected",
                self._requeue,
                {200: Answer("It is on its queue.", Requeued)},
                description="What nobody can read comes back as a new entry. 409: somebody has decided already.",
                parameters=(_ENTRY_ID,),
                body=RequeueRequest,
                body_required=False,
                problems=(404, 409),
            ),
            Operation(
                "POST",
                "/v1/quarantine/{id}/drop",
                "drop_quarantined",
                "Give a message up for good",
                self._drop,
                {200: Answer("The entry.", QuarantineSummary)},
                description="Its bytes are kept for the time of retention. 409: somebody has decided already.",
                parameters=(_ENTRY_ID,),
                problems=(404, 409),
            ),
        ]

    async def _list(self, request: Request) -> ASGIApp:
        limit, before = page_of(request)
        rows = await self._services.database.read(
            list_entries,
            tenant_of(request),
            limit=limit + 1,
            before=before,
            state=choice(request, "state", _STATES) or "lying",
            queue=optional_queue(request),
        )
        entries = [QuarantineSummary.of_row(row) for row in rows[:limit]]
        return json_response(QuarantinePage(data=entries, next=entries[-1].id if len(rows) > limit else None))

    async def _get(self, request: Request) -> ASGIApp:
        entry = await self._services.database.read(
            get_entry, tenant_of(request), path_id(request, "entry in the quarantine")
        )
        return json_response(QuarantineView.of_row(entry))

    async def _requeue(self, request: Request) -> ASGIApp:
        tenant, entry_id = tenant_of(request), path_id(request, "entry in the quarantine")
        asked = await self._read_requeue(request)
        entry = await self._services.database.read(get_lying, tenant, entry_id)
        payload = None if asked.payload is None else self._checked(tenant, entry, asked.payload)
        settings = self._services.settings
        requeuer = Requeuer(self._services.database, self._services.log.redis, settings.namespace)
        row = await requeuer.requeue(tenant, entry_id, payload)
        job_id = None if payload is None else payload["job_id"]
        return json_response(Requeued(**QuarantineSummary.of_row(row).model_dump(), job_id=job_id))

    async def _drop(self, request: Request) -> ASGIApp:
        row = await self._services.database.write(
            resolve, tenant_of(request), path_id(request, "entry in the quarantine"), DROPPED
        )
        return json_response(QuarantineSummary.of_row(row))

    async def _read_requeue(self, request: Request) -> RequeueRequest:
        body = await read_body(request, self._services.settings.request_max_bytes)
        try:
            return RequeueRequest.model_validate(parse_json(body) if body.strip() else {})
        except ValidationError as error:
            raise request_error(error) from None

    def _checked(self, tenant: str, entry: dict[str, Any], payload: dict[str, Any]) -> dict[str, Any]:
        """The job to put on the queue, under an id that is known. Raises InvalidRequest with a field of `payload`."""
        # By default the entry's own id: a requeue that is repeated makes no second job.
        job = {"queue": entry["queue"], "job_id": entry["id"], **payload}
        if job.get("tenant", tenant) != tenant:
            raise InvalidRequest(f"the request is the tenant {tenant}'s: leave this out", field="payload.tenant")
        try:
            checked = ChatJob.from_request({**job, "tenant": tenant})
            self._services.producer.check(checked)
        except RequestError as error:
            raise InvalidRequest(error.reason, field=f"payload.{error.field}" if error.field else "payload") from None
        return checked.to_json()
