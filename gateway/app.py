"""The gateway as an ASGI application: opens what it needs, guards the door, and answers every failure as a problem."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Self

import structlog
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.bulk_runs import BulkRunRoutes
from gateway.dead_letters import DeadLetterRoutes
from gateway.events import EventRoutes
from gateway.guard import check_origin
from gateway.health import HealthRoutes
from gateway.jobs import JobRoutes
from gateway.listings import ListingRoutes
from gateway.metrics import MetricsRoutes
from gateway.openapi import OpenApiRoutes
from gateway.operation import Operation
from gateway.overview import OverviewRoutes
from gateway.problems import ClientGone, problem_response
from gateway.quarantine import QuarantineRoutes
from gateway.queues import QueueRoutes
from gateway.routing import PathEndpoint, build_router
from gateway.services import Services, open_services
from gateway.sessions import SessionRoutes
from schemas.errors import ConfigurationError, RequestError, StorageUnavailable
from schemas.settings import Settings

logger = structlog.get_logger(__name__)


def create_app(settings: Settings) -> Gateway:
    """The gateway for these settings. It opens nothing before its lifespan begins."""
    return Gateway(settings)


class Gateway:
    """The application. It serves between `__aenter__` and `__aexit__`, which its ASGI lifespan calls too."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self._router: Router | None = None
        #: What is open while it serves.
        self.services: Services | None = None

    async def __aenter__(self) -> Self:
        """Open what is needed. Raises ConfigurationError or OSError for what can never work."""
        self.services = await self._stack.enter_async_context(open_services(self._settings))
        self._router = build_router(api_operations(self.services))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def stop(self) -> None:
        """End every open stream now: the server is about to wait for its connections."""
        if self.services is not None:
            self.services.hub.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await _Exchange(self._route, scope, receive, send).run()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.__aenter__()
        except (ConfigurationError, OSError) as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.__aexit__()
        await send({"type": "lifespan.shutdown.complete"})

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_origin(scope)
        assert self._router is not None, "the server has not begun the lifespan"
        await self._router(scope, receive, send)


def api_operations(services: Services) -> list[Operation]:
    """Everything that is served."""
    operations = [
        *ListingRoutes(services).operations(),
        *JobRoutes(services).operations(),
        *EventRoutes(services).operations(),
        *SessionRoutes(services).operations(),
        *DeadLetterRoutes(services).operations(),
        *BulkRunRoutes(services).operations(),
        *QuarantineRoutes(services).operations(),
        *QueueRoutes(services).operations(),
        *OverviewRoutes(services).operations(),
        *HealthRoutes(services).operations(),
        *MetricsRoutes(services).operations(),
    ]
    return [*operations, *OpenApiRoutes(operations).operations()]


class _Exchange:
    """One request and its response: failures become problems, and one line goes to the log."""

    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = app
        self._scope = scope
        self._receive = receive
        self._send_on = send
        self._status = 0

    async def run(self) -> None:
        began = time.perf_counter()
        try:
            await self._app(self._scope, self._receive, self._send)
        except ClientGone:
            pass
        except Exception as error:
            if self._status:
                raise  # too late for another answer: the server logs it and cuts the connection
            _log_failure(error)
            await problem_response(error)(self._scope, self._receive, self._send)
        finally:
            self._log(time.perf_counter() - began)

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        await self._send_on(message)

    def _log(self, seconds: float) -> None:
        method, endpoint = self._scope["method"], self._scope.get("endpoint")
        path, write = None, logger.info
        if isinstance(endpoint, PathEndpoint):
            path = endpoint.path
            write = logger.debug if endpoint.quiet(method) else logger.info
        write("request", method=method, path=path, status=self._status, ms=round(seconds * 1000, 2))


def _log_failure(error: Exception) -> None:
    if isinstance(error, StorageUnavailable):
        logger.warning("the database does not answer", error=str(error))
    elif not isinstance(error, RequestError):
        logger.exception("a request failed")
