"""Sessions over HTTP: make, list, read, change, delete."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from redis.exceptions import RedisError
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.operation import SESSION_ID, Answer, Operation, json_response
from gateway.requests import PAGE_PARAMETERS, page_of, path_id, read_object, tenant_of
from gateway.services import Services
from schemas.session_view import (
    SessionChange,
    SessionDetail,
    SessionPage,
    SessionRequest,
    SessionSummary,
    SessionView,
    history_of,
)
from storage.sessions import (
    NewSession,
    change_session,
    create_session,
    delete_session,
    get_messages,
    get_session,
    list_sessions,
)

#: How long removing event logs may hold up the answer. What is left expires.
FORGET_TIMEOUT_S = 1.0

logger = structlog.get_logger(__name__)


class SessionRoutes:
    """`/v1/sessions` and what is below it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "POST",
                "/v1/sessions",
                "create_session",
                "Make a session, perhaps with a conversation that was held elsewhere",
                self._create,
                {201: Answer("The session.", SessionView, headers={"Location": "The session."})},
                body=SessionRequest,
            ),
            Operation(
                "GET",
                "/v1/sessions",
                "list_sessions",
                "The sessions, the newest first",
                self._list,
                {200: Answer("A page of them.", SessionPage)},
                parameters=PAGE_PARAMETERS,
            ),
            Operation(
                "GET",
                "/v1/sessions/{id}",
                "get_session",
                "A session with its messages as a tree, and the branch that is being talked on",
                self._get,
                {200: Answer("The session.", SessionDetail)},
                parameters=(SESSION_ID,),
                problems=(404,),
            ),
            Operation(
                "PATCH",
                "/v1/sessions/{id}",
                "change_session",
                "Change a session's settings, or the branch that is talked on",
                self._change,
                {200: Answer("The session as it is now.", SessionView)},
                description="Jobs that are claimed from now on get the new settings. What is left out stays.",
                parameters=(SESSION_ID,),
                body=SessionChange,
                problems=(404,),
            ),
            Operation(
                "DELETE",
                "/v1/sessions/{id}",
                "delete_session",
                "Remove a session with its messages and jobs",
                self._delete,
                {204: Answer("It is gone.")},
                parameters=(SESSION_ID,),
                problems=(404, 409),
            ),
        ]

    async def _create(self, request: Request) -> ASGIApp:
        body = SessionRequest.from_request(await self._read(request))
        self._check_names(body.agent_framework, body.model, body.tools)
        session = NewSession(
            tenant=tenant_of(request),
            user_id=body.user_id,
            agent_framework=body.agent_framework or self._services.settings.agent_framework,
            model=body.model,
            system=body.system,
            language=body.language,
            tools=body.tools,
            parameters=body.parameters.to_json(),
            metadata=body.metadata,
        )
        row = await self._services.database.write(create_session, session, history_of(body.messages))
        return json_response(SessionView.of_row(row), 201, {"location": f"/v1/sessions/{session.id}"})

    async def _list(self, request: Request) -> ASGIApp:
        limit, before = page_of(request)
        rows = await self._services.database.read(list_sessions, tenant_of(request), limit=limit + 1, before=before)
        sessions = [SessionSummary.of_row(row) for row in rows[:limit]]
        return json_response(SessionPage(data=sessions, next=sessions[-1].id if len(rows) > limit else None))

    async def _get(self, request: Request) -> ASGIApp:
        session_id = path_id(request, "session")
        row, messages = await self._services.database.read(_session_with_messages, tenant_of(request), session_id)
        return json_response(SessionDetail.of_rows(row, messages))

    async def _change(self, request: Request) -> ASGIApp:
        session_id = path_id(request, "session")
        body = SessionChange.from_request(await self._read(request))
        self._check_names(body.agent_framework, body.model, body.tools)
        changes = body.columns()
        if "agent_framework" in changes:
            changes["agent_framework"] = body.agent_framework or self._services.settings.agent_framework
        row = await self._services.database.write(change_session, tenant_of(request), session_id, changes)
        return json_response(SessionView.of_row(row))

    async def _delete(self, request: Request) -> ASGIApp:
        session_id = path_id(request, "session")
        job_ids = await self._services.database.write(delete_session, tenant_of(request), session_id)
        await self._forget_logs(job_ids)
        return Response(status_code=204)

    async def _forget_logs(self, job_ids: list[str]) -> None:
        try:
            async with asyncio.timeout(FORGET_TIMEOUT_S):
                await self._services.log.forget(job_ids)
        except (RedisError, OSError, TimeoutError) as error:
            logger.warning("event logs of a deleted session are left to expire", error=type(error).__name__)

    async def _read(self, request: Request) -> dict[str, Any]:
        return await read_object(request, self._services.settings.request_max_bytes)

    def _check_names(self, framework: str | None, model: str | None, tools: list[str] | None) -> None:
        self._services.producer.check_names(framework=framework, model=model, tools=tools)


def _session_with_messages(
    connection: Connection, tenant: str, session_id: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return get_session(connection, tenant, session_id), get_messages(connection, tenant, session_id)
