"""What jobs and sessions may name, and what this is."""

from __future__ import annotations

from starlette.requests import Request
from starlette.types import ASGIApp

from gateway.operation import Answer, Operation, json_response
from gateway.services import Services
from schemas.listing import Framework, Frameworks, Model, Models, ToolName, Tools, Welcome
from schemas.tool import BUILTIN_TOOLS
from schemas.version import version

LINKS = {
    "jobs": "/v1/jobs",
    "sessions": "/v1/sessions",
    "dead_letters": "/v1/dead-letters",
    "bulk_runs": "/v1/bulk-runs",
    "quarantine": "/v1/quarantine",
    "queues": "/v1/queues",
    "breakers": "/v1/breakers",
    "models": "/v1/models",
    "frameworks": "/v1/frameworks",
    "tools": "/v1/tools",
    "overview": "/v1/overview",
    "openapi": "/openapi.json",
    "health": "/healthz",
    "readiness": "/readyz",
}


class ListingRoutes:
    """`/`, `/v1/models`, `/v1/frameworks` and `/v1/tools`."""

    def __init__(self, services: Services) -> None:
        self._settings = services.settings
        self._welcome = Welcome(version=version(), links=LINKS)

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", "/", "welcome", "What this is", self._root, {200: Answer("Links.", Welcome)}),
            Operation(
                "GET",
                "/v1/models",
                "list_models",
                "The models a job may name",
                self._models,
                {200: Answer("All of them, the default one first.", Models)},
            ),
            Operation(
                "GET",
                "/v1/frameworks",
                "list_frameworks",
                "The agent frameworks a session may name",
                self._frameworks,
                {200: Answer("All of them.", Frameworks)},
            ),
            Operation(
                "GET",
                "/v1/tools",
                "list_tools",
                "The tools a job may allow",
                self._tools,
                {200: Answer("All of them.", Tools)},
            ),
        ]

    async def _root(self, request: Request) -> ASGIApp:
        return json_response(self._welcome)

    async def _models(self, request: Request) -> ASGIApp:
        default = self._settings.default_model
        return json_response(
            Models(data=[Model(id=name, default=name == default) for name in self._settings.known_models()])
        )

    async def _frameworks(self, request: Request) -> ASGIApp:
        default = self._settings.agent_framework
        choices = self._settings.framework_choices
        return json_response(
            Frameworks(data=[Framework(id=name, label=label, default=name == default) for name, label in choices])
        )

    async def _tools(self, request: Request) -> ASGIApp:
        names = self._settings.tool_names
        return json_response(Tools(data=[ToolName(id=name, builtin=name in BUILTIN_TOOLS) for name in names]))
