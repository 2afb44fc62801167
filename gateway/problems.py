"""Refusals and failures as problem details."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response

from schemas.errors import RequestError, StorageUnavailable
from schemas.problem import PROBLEM_MEDIA_TYPE, Problem

#: A database that restarts is back within seconds.
RETRY_AFTER_S = 2


class Forbidden(RequestError):
    """The request comes from where none may come from."""

    status = 403
    code = "forbidden"


class MethodNotAllowed(RequestError):
    """The path is served, but not with this method."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, reason: str, allowed: str) -> None:
        super().__init__(reason)
        self.allowed = allowed


class ClientGone(Exception):
    """The client left before its request was complete: there is nobody to answer."""


def problem_response(error: Exception) -> Response:
    """The answer to a request that met `error`; says nothing of the inside."""
    match error:
        case MethodNotAllowed():
            return _response(error.status, error.code, error.reason, headers={"allow": error.allowed})
        case RequestError():
            return _response(error.status, error.code, error.reason, field=error.field)
        case StorageUnavailable():
            return _response(
                503,
                "storage_unavailable",
                "the database does not answer; send the request again, with the same job_id if it makes a job",
                headers={"retry-after": str(RETRY_AFTER_S)},
            )
        case _:
            return _response(500, "internal", "something went wrong here; the gateway's log has the details")


def _response(
    status: int, code: str, detail: str, *, field: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, code=code, field=field)
    return Response(
        problem.model_dump_json(exclude_none=True),
        status,
        headers={"cache-control": "no-store", **(headers or {})},
        media_type=PROBLEM_MEDIA_TYPE,
    )
