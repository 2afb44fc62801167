"""From a path and a method to the operation that serves it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from gateway.operation import Operation
from gateway.problems import MethodNotAllowed
from schemas.errors import NotFound


class PathEndpoint:
    """Everything that is served at one path: its operations by method, HEAD like GET, and OPTIONS."""

    def __init__(self, path: str, operations: Mapping[str, Operation]) -> None:
        self.path = path
        self._operations = dict(operations)
        if "GET" in operations:
            self._operations["HEAD"] = operations["GET"]
        self._allowed = ", ".join(sorted({*self._operations, "OPTIONS"}))

    def quiet(self, method: str) -> bool:
        """Whether requests with this method are not worth a line in the log."""
        return method in self._operations and self._operations[method].quiet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        if method == "OPTIONS":
            await Response(status_code=204, headers={"allow": self._allowed})(scope, receive, send)
            return
        operation = self._operations.get(method)
        if operation is None:
            raise MethodNotAllowed(f"{method} is not served here", self._allowed)
        response = await operation.handler(Request(scope, receive, send))
        await response(scope, receive, send)


def build_router(operations: Iterable[Operation]) -> Router:
    """A router over all operations; what nobody serves raises NotFound or MethodNotAllowed."""
    paths: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = operation
    # The first that matches serves: a path with a name goes before one with an id in its place.
    in_order = sorted(paths.items(), key=lambda item: "{" in item[0])
    routes = [Route(path, PathEndpoint(path, methods)) for path, methods in in_order]
    return Router(routes, redirect_slashes=False, default=_not_found)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFound("nothing is served at this path")
