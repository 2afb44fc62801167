"""One operation of the HTTP API: how it is served, and how it is described."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

#: Answers a request with a response, which is any ASGI application; may raise a RequestError.
Handler = Callable[[Request], Awaitable[ASGIApp]]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query, the path or a header; `schema` is its JSON Schema."""

    name: str
    description: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    where: Literal["query", "path", "header"] = "query"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that is no problem: its body is `model` as JSON, a stream of job events, or nothing."""

    description: str
    model: type[BaseModel] | None = None
    events: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path. `problems` are the statuses of its refusals beside those every operation has."""

    method: str
    path: str
    name: str
    summary: str
    handler: Handler
    answers: Mapping[int, Answer]
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: type[BaseModel] | None = None
    body_required: bool = True
    problems: tuple[int, ...] = ()
    #: Watched by machines every few seconds: not worth a line in the log.
    quiet: bool = False


JOB_ID = Parameter("id", "The job's id.", {"type": "string", "format": "uuid"}, "path")
SESSION_ID = Parameter("id", "The session's id.", {"type": "string", "format": "uuid"}, "path")


def json_response(view: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A view as JSON."""
    return Response(
        view.model_dump_json(),
        status,
        headers={"cache-control": "no-store", **(headers or {})},
        media_type="application/json",
    )
