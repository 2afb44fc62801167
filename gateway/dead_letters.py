"""Dead letters over HTTP: look at them, and decide about them one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.types import ASGIApp

from gateway.operation import Answer, Operation, Parameter, json_response
from gateway.requests import (
    PAGE_PARAMETERS,
    choice,
    optional_queue,
    optional_text,
    optional_times,
    page_of,
    path_id,
    tenant_of,
)
from gateway.services import Services
from schemas.dead_letter_view import DeadLetterPage, DeadLetterSummary, DeadLetterView, LetterState
from schemas.job_view import JobView
from storage.dead_letters import get_letter, list_letters
from storage.jobs.redrive import discard, redrive
from storage.jobs.statements import Recorded
from storage.jobs.views import get_job

_STATES: tuple[str, ...] = get_args(LetterState)
_LETTER_ID = Parameter("id", "The dead letter's id.", {"type": "string", "format": "uuid"}, "path")
_DECIDED = "Somebody has decided about it already, or the job can never run."


class DeadLetterRoutes:
    """`/v1/dead-letters` and what is below it, but the bulk runs."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/v1/dead-letters",
                "list_dead_letters",
                "The dead letters, the newest first",
                self._list,
                {200: Answer("A page of them.", DeadLetterPage)},
                parameters=(
                    Parameter(
                        "state",
                        "Those nobody has decided about, or those that were redriven or discarded.",
                        {"enum": list(_STATES), "default": "lying"},
                    ),
                    Parameter("queue", "Only those of this queue."),
                    Parameter("error_code", "Only those that died of this."),
                    Parameter("framework", "Only those of this agent framework."),
                    Parameter("model", "Only those whose job asked for this model."),
                    Parameter("since", "Only those that died then or later: RFC 3339, or how long ago (`2h`)."),
                    Parameter("until", "Only those that died before then."),
                    *PAGE_PARAMETERS,
                ),
            ),
            Operation(
                "GET",
                "/v1/dead-letters/{id}",
                "get_dead_letter",
                "A dead letter with its request and every attempt",
                self._get,
                {200: Answer("The dead letter.", DeadLetterView)},
                parameters=(_LETTER_ID,),
                problems=(404,),
            ),
            Operation(
                "POST",
                "/v1/dead-letters/{id}/redrive",
                "redrive_dead_letter",
                "Have its job answered after all",
                self._redrive,
                {200: Answer("The job is queued again.", JobView)},
                description="The same job, as if it were accepted anew: the last in its session, with a whole deadline "
                f"and no failures. Its events go on where they ended. 409: {_DECIDED}",
                parameters=(_LETTER_ID,),
                problems=(404, 409),
            ),
            Operation(
                "POST",
                "/v1/dead-letters/{id}/discard",
                "discard_dead_letter",
                "Give its job up for good",
                self._discard,
                {200: Answer("The dead letter.", DeadLetterView)},
                description=f"It is kept for the time of retention, and then removed with its job. 409: {_DECIDED}",
                parameters=(_LETTER_ID,),
                problems=(404, 409),
            ),
        ]

    async def _list(self, request: Request) -> ASGIApp:
        limit, before = page_of(request)
        database = self._services.database
        wanted = {
            "queue": optional_queue(request),
            "error_code": optional_text(request, "error_code"),
            "framework": optional_text(request, "framework"),
            "model": optional_text(request, "model"),
            **await optional_times(request, database, "since", "until"),
        }
        rows = await database.read(
            list_letters,
            tenant_of(request),
            limit=limit + 1,
            before=before,
            state=choice(request, "state", _STATES) or "lying",
            wanted={name: value for name, value in wanted.items() if value is not None},
        )
        letters = [DeadLetterSummary.of_row(row) for row in rows[:limit]]
        return json_response(DeadLetterPage(data=letters, next=letters[-1].id if len(rows) > limit else None))

    async def _get(self, request: Request) -> ASGIApp:
        letter = await self._services.database.read(get_letter, tenant_of(request), path_id(request, "dead letter"))
        return json_response(DeadLetterView.of_row(letter))

    async def _redrive(self, request: Request) -> ASGIApp:
        recorded = await self._decide(request, redrive)
        job = await self._services.database.read(get_job, tenant_of(request), recorded.job_id)
        return json_response(JobView.of_row(job))

    async def _discard(self, request: Request) -> ASGIApp:
        await self._decide(request, discard)
        return await self._get(request)

    async def _decide(self, request: Request, how: Callable[[Connection, str, str], Recorded]) -> Recorded:
        recorded = await self._services.database.write(how, tenant_of(request), path_id(request, "dead letter"))
        await self._services.producer.announce(recorded)
        return recorded
