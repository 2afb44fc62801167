"""Bulk runs over HTTP: begin one over what meets a filter, see how far it is, stop it."""

from __future__ import annotations

from typing import get_args

from pydantic import ValidationError
from starlette.requests import Request
from starlette.types import ASGIApp

from gateway.operation import Answer, Operation, Parameter, json_response
from gateway.requests import PAGE_PARAMETERS, choice, page_of, path_id, read_object, tenant_of
from gateway.services import Services
from schemas.bulk_run import (
    BulkAction,
    BulkDryRun,
    BulkRequest,
    BulkRunPage,
    BulkRunView,
    BulkState,
    DeadLetterBulkRequest,
    JobsCancelRequest,
    fixed,
)
from schemas.chat_job import request_error
from storage.bulk_runs import abort, get_run, list_runs, preview, start
from storage.jobs.statements import read_clock

#: Ids that a dry run shows.
PREVIEW_IDS = 10

_STATES: tuple[str, ...] = get_args(BulkState)
_RUN_ID = Parameter("id", "The bulk run's id.", {"type": "string", "format": "uuid"}, "path")
_ANSWERS = {
    200: Answer("With `dry_run`: what would be touched. Nothing was.", BulkDryRun),
    202: Answer("The run has begun; with nothing to do it is finished.", BulkRunView, headers={"Location": "The run."}),
}
_DESCRIPTION = (
    "What is there when the run begins is dealt with in the order of ids, by the gateway or a worker, at `rate` items "
    "a second. What comes later is not touched. An item that has moved on is skipped."
)


class BulkRunRoutes:
    """`/v1/bulk-runs`, and the requests that begin one."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                "/v1/dead-letters/redrive",
                "redrive_dead_letters",
                "Redrive all dead letters that meet a filter",
                self._redrive,
                _ANSWERS,
                description=_DESCRIPTION,
                body=DeadLetterBulkRequest,
            ),
            Operation(
                "POST",
                "/v1/dead-letters/discard",
                "discard_dead_letters",
                "Discard all dead letters that meet a filter",
                self._discard,
                _ANSWERS,
                description=_DESCRIPTION,
                body=DeadLetterBulkRequest,
            ),
            Operation(
                "POST",
                "/v1/jobs/cancel",
                "cancel_jobs",
                "Stop all unfinished jobs that meet a filter",
                self._cancel,
                _ANSWERS,
                description=_DESCRIPTION,
                body=JobsCancelRequest,
            ),
            Operation(
                "GET",
                "/v1/bulk-runs",
                "list_bulk_runs",
                "The bulk runs, the newest first",
                self._list,
                {200: Answer("A page of them.", BulkRunPage)},
                parameters=(Parameter("state", "Only those.", {"enum": list(_STATES)}), *PAGE_PARAMETERS),
            ),
            Operation(
                "GET",
                "/v1/bulk-runs/{id}",
                "get_bulk_run",
                "A bulk run and how far it is",
                self._get,
                {200: Answer("The bulk run.", BulkRunView)},
                parameters=(_RUN_ID,),
                problems=(404,),
            ),
            Operation(
                "POST",
                "/v1/bulk-runs/{id}/abort",
                "abort_bulk_run",
                "Stop a bulk run",
                self._abort,
                {
                    200: Answer(
                        "The bulk run: no further item is dealt with. One that had ended is as it was.", BulkRunView
                    )
                },
                parameters=(_RUN_ID,),
                problems=(404,),
            ),
        ]

    async def _redrive(self, request: Request) -> ASGIApp:
        return await self._begin(request, "redrive", DeadLetterBulkRequest)

    async def _discard(self, request: Request) -> ASGIApp:
        return await self._begin(request, "discard", DeadLetterBulkRequest)

    async def _cancel(self, request: Request) -> ASGIApp:
        return await self._begin(request, "cancel", JobsCancelRequest)

    async def _begin(self, request: Request, action: BulkAction, model: type[BulkRequest]) -> ASGIApp:
        body = await read_object(request, self._services.settings.request_max_bytes)
        try:
            asked = model.model_validate(body)
        except ValidationError as error:
            raise request_error(error) from None
        database, tenant = self._services.database, tenant_of(request)
        wanted = fixed(asked.given(), await database.read(read_clock))
        if asked.dry_run:
            count, ids = await database.read(preview, tenant, action, wanted, PREVIEW_IDS)
            return json_response(BulkDryRun(count=count, ids=ids))
        reason = asked.reason if isinstance(asked, JobsCancelRequest) else ""
        run = await database.write(start, tenant, action, wanted, rate=asked.rate, reason=reason)
        self._services.bulk_runner.wake()
        return json_response(BulkRunView.of_row(run), 202, {"location": f"/v1/bulk-runs/{run['id']}"})

    async def _list(self, request: Request) -> ASGIApp:
        limit, before = page_of(request)
        rows = await self._services.database.read(
            list_runs,
            tenant_of(request),
            limit=limit + 1,
            before=before,
            state=choice(request, "state", _STATES),
        )
        runs = [BulkRunView.of_row(row) for row in rows[:limit]]
        return json_response(BulkRunPage(data=runs, next=runs[-1].id if len(rows) > limit else None))

    async def _get(self, request: Request) -> ASGIApp:
        row = await self._services.database.read(get_run, tenant_of(request), path_id(request, "bulk run"))
        return json_response(BulkRunView.of_row(row))

    async def _abort(self, request: Request) -> ASGIApp:
        row = await self._services.database.write(abort, tenant_of(request), path_id(request, "bulk run"))
        return json_response(BulkRunView.of_row(row))
