"""The API's description, made from the operations that are served and the models they speak: OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any, Literal, get_args

import orjson
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.operation import Answer, Operation, Parameter
from gateway.requests import TENANT_HEADER
from schemas import job_event
from schemas.problem import PROBLEM_MEDIA_TYPE, Problem
from schemas.version import version

#: Refusals that every operation has: a page from elsewhere, a wrong parameter or field, a database that is away.
COMMON_PROBLEMS = (403, 422, 500, 503)
#: What reading a body adds: it is no JSON, or too large.
BODY_PROBLEMS = (400, 413)

_TENANT = Parameter(TENANT_HEADER, "Whose request it is; `default` if it is not said.", where="header")
_EVENT_MODELS: tuple[type[BaseModel], ...] = get_args(get_args(job_event.JobEvent)[0])
_REF = "#/components/schemas/{model}"

Mode = Literal["validation", "serialization"]


class OpenApiRoutes:
    """`/openapi.json`, which describes itself too."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._operations = [*operations, *self.operations()]
        self._document: bytes | None = None

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET", "/openapi.json", "get_openapi", "This description", self._get, {200: Answer("OpenAPI 3.1.")}
            )
        ]

    async def _get(self, request: Request) -> ASGIApp:
        if self._document is None:
            self._document = orjson.dumps(openapi_document(self._operations))
        return Response(self._document, media_type="application/json")


def openapi_document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The description of these operations."""
    schemas = _Schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "chatmill",
            "version": version(),
            "description": "Chat requests are accepted at once and answered by workers; their events can be followed.",
        },
        "paths": paths,
        "components": {"schemas": schemas.components},
    }


class _Schemas:
    """The JSON Schemas of all models, each named once."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        used: dict[tuple[type[BaseModel], Mode], None] = {(Problem, "serialization"): None}
        used.update(dict.fromkeys((model, "serialization") for model in _EVENT_MODELS))
        for operation in operations:
            if operation.body is not None:
                used[operation.body, "validation"] = None
            used.update(
                dict.fromkeys((answer.model, "serialization") for answer in operation.answers.values() if answer.model)
            )
        self._refs, definitions = models_json_schema(list(used), ref_template=_REF)
        events = [self.ref(model, "serialization") for model in _EVENT_MODELS]
        self.components: dict[str, Any] = {
            **definitions["$defs"],
            "JobEvent": {
                "description": "The `data` of one frame of an event stream.",
                "oneOf": events,
                "discriminator": {
                    "propertyName": "kind",
                    "mapping": {
                        model.model_fields["kind"].default: event["$ref"]
                        for model, event in zip(_EVENT_MODELS, events, strict=True)
                    },
                },
            },
        }

    def ref(self, model: type[BaseModel], mode: Mode) -> dict[str, Any]:
        return dict(self._refs[model, mode])


def _operation(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        **({"description": operation.description} if operation.description else {}),
        "parameters": [_parameter(parameter) for parameter in (*operation.parameters, _TENANT)],
        "responses": _responses(operation, schemas),
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.body_required,
            "content": {"application/json": {"schema": schemas.ref(operation.body, "validation")}},
        }
    return described


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.where == "path",
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }


def _responses(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    responses = {str(status): _answer(answer, schemas) for status, answer in operation.answers.items()}
    statuses = {*COMMON_PROBLEMS, *operation.problems, *(BODY_PROBLEMS if operation.body is not None else ())}
    problem = {PROBLEM_MEDIA_TYPE: {"schema": schemas.ref(Problem, "serialization")}}
    for status in sorted(statuses):
        responses.setdefault(str(status), {"description": HTTPStatus(status).phrase, "content": problem})
    return responses


def _answer(answer: Answer, schemas: _Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if answer.model is not None:
        content["application/json"] = {"schema": schemas.ref(answer.model, "serialization")}
    if answer.events:
        content["text/event-stream"] = {"schema": {"$ref": _REF.format(model="JobEvent")}}
    described: dict[str, Any] = {"description": answer.description}
    if content:
        described["content"] = content
    if answer.headers:
        described["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in answer.headers.items()
        }
    return described
