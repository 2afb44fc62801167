"""Reading what a request says: its tenant, body, path and query. What is wrong raises a RequestError with the field."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request

from gateway.operation import Parameter
from gateway.problems import ClientGone
from schemas.border_text import clean_text, parse_json
from schemas.chat_job import DEFAULT_TENANT, QueueName, TenantName
from schemas.errors import InvalidRequest, MalformedRequest, NotFound, RequestTooLarge
from schemas.ids import canonical_id, keyed_id
from schemas.moment import MOMENT_MAX, moment_us
from storage.database import Database
from storage.jobs.statements import read_clock

TENANT_HEADER = "x-chatmill-tenant"
IDEMPOTENCY_HEADER = "idempotency-key"
DEFAULT_LIMIT = 50
MAX_LIMIT = 200

#: How `page_of` is described.
PAGE_PARAMETERS = (
    Parameter(
        "limit",
        "At most so many.",
        {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    ),
    Parameter("before", "The `next` of the page before.", {"type": "string", "format": "uuid"}),
)

#: What a parameter may hold that is compared with a name.
TEXT_MAX = 128

_TENANT: TypeAdapter[str] = TypeAdapter(TenantName)
_QUEUE: TypeAdapter[str] = TypeAdapter(QueueName)
_FLAGS = {"true": True, "1": True, "": True, "false": False, "0": False}


class Page(NamedTuple):
    """A part of a list: at most `limit` items behind the id `before`."""

    limit: int
    before: str | None


def tenant_of(request: Request) -> str:
    """Whose request it is, by its header."""
    name = request.headers.get(TENANT_HEADER)
    if name is None:
        return DEFAULT_TENANT
    try:
        return _TENANT.validate_python(name)
    except ValidationError:
        raise InvalidRequest("this is not a tenant's name", field=TENANT_HEADER) from None


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body, whatever its content type. Raises RequestTooLarge as soon as it is known to be."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(body)


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The body as a JSON object without its `tenant`, which may only be the request's."""
    value = parse_json(await read_body(request, max_bytes))
    if not isinstance(value, dict):
        raise MalformedRequest("the body is not a JSON object")
    tenant = tenant_of(request)
    if value.pop("tenant", tenant) != tenant:
        raise InvalidRequest(f"the request is the tenant {tenant}'s: leave this out", field="tenant")
    return value


def job_id_of(request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """The body with the job's id, if the request carries an idempotency key in its header."""
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key is None:
        return body
    if not re.fullmatch(r"[\x20-\x7e]{1,255}", key):
        raise InvalidRequest("give 1 to 255 printable ASCII characters", field=IDEMPOTENCY_HEADER)
    job_id = keyed_id(tenant_of(request), key)
    if body.get("job_id", job_id) != job_id:
        raise InvalidRequest("give a job_id or this header, not both", field=IDEMPOTENCY_HEADER)
    return {**body, "job_id": job_id}


def path_id(request: Request, what: str) -> str:
    """The id in the path; what is none is as missing as an id nobody has."""
    try:
        return canonical_id(request.path_params["id"])
    except ValueError:
        raise NotFound(f"there is no such {what}") from None


def flag(request: Request, name: str) -> bool:
    """A parameter that is on or off; off if it is not there."""
    text = request.query_params.get(name, "false")
    if text.lower() not in _FLAGS:
        raise InvalidRequest("give true or false", field=name)
    return _FLAGS[text.lower()]


def number(request: Request, name: str, *, default: float, least: float, most: float) -> float:
    """A parameter that is a number between `least` and `most`."""
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise InvalidRequest(f"give a number from {least:g} to {most:g}", field=name)
    return value


def choice(request: Request, name: str, choices: tuple[str, ...]) -> str | None:
    """A parameter that is one of a few words, or not there."""
    text = request.query_params.get(name)
    if text is not None and text not in choices:
        raise InvalidRequest(f"give one of {', '.join(choices)}", field=name)
    return text


def optional_id(request: Request, name: str) -> str | None:
    """A parameter that is an id, or not there."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return canonical_id(text)
    except ValueError:
        raise InvalidRequest("this is not a UUID", field=name) from None


def optional_queue(request: Request) -> str | None:
    """The parameter `queue`, if it is there."""
    name = request.query_params.get("queue")
    return None if name is None else _checked_queue(name, "queue")


def queue_name(request: Request) -> str:
    """The name in the path."""
    return _checked_queue(request.path_params["name"], "name")


def optional_text(request: Request, name: str) -> str | None:
    """A parameter that is any short text, or not there."""
    text = request.query_params.get(name)
    if text is None:
        return None
    if not 0 < len(text) <= TEXT_MAX:
        raise InvalidRequest(f"give 1 to {TEXT_MAX} characters", field=name)
    return clean_text(text)


async def optional_times(request: Request, database: Database, *names: str) -> dict[str, int]:
    """Those of these parameters that are there, as microseconds since 1970; how long ago is by the database's clock."""
    given = {name: request.query_params[name] for name in names if name in request.query_params}
    now_us = await database.read(read_clock) if given else 0
    times = {}
    for name, text in given.items():
        try:
            times[name] = moment_us(text[:MOMENT_MAX], now_us)
        except ValueError as error:
            raise InvalidRequest(str(error), field=name) from None
    return times


def page_of(request: Request) -> Page:
    """Which part of a list is asked for."""
    text = request.query_params.get("limit", str(DEFAULT_LIMIT))
    if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= MAX_LIMIT:
        raise InvalidRequest(f"give a whole number from 1 to {MAX_LIMIT}", field="limit")
    return Page(int(text), optional_id(request, "before"))


def _checked_queue(name: str, field: str) -> str:
    try:
        return _QUEUE.validate_python(name)
    except ValidationError:
        raise InvalidRequest("this is not a queue's name", field=field) from None


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"the body is larger than {max_bytes} bytes")
