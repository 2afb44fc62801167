"""The API's description says what is served, and nothing else."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # it ships no types

from gateway.app import api_operations
from gateway.openapi import openapi_document
from gateway.operation import Operation
from gateway.services import Services
from schemas.job_event import TERMINAL_KINDS, encode_event
from schemas.settings import Settings


class _NothingOpen:
    """Services for routes that are only looked at."""

    settings = Settings()


@pytest.fixture(scope="module")
def operations() -> list[Operation]:
    return api_operations(cast("Services", _NothingOpen()))


@pytest.fixture(scope="module")
def document(operations: list[Operation]) -> dict[str, Any]:
    return openapi_document(operations)


def refs(node: Any) -> list[str]:
    """Every reference in the document."""
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for value in node.values() for ref in refs(value)]
    if isinstance(node, list):
        return [ref for value in node for ref in refs(value)]
    return []


def test_every_operation_is_described_once(operations: list[Operation], document: dict[str, Any]) -> None:
    served = {(operation.path, operation.method.lower()) for operation in operations}
    described = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert described == served
    assert len({operation.name for operation in operations}) == len(operations)
    assert document["openapi"] == "3.1.0"


def test_every_reference_leads_to_a_schema(document: dict[str, Any]) -> None:
    prefix = "#/components/schemas/"
    found = refs(document)
    assert found
    for ref in found:
        assert ref.removeprefix(prefix) in document["components"]["schemas"], ref


def test_every_schema_is_a_json_schema(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_path_parameters_are_the_ones_in_the_path(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
            assert named == {part.strip("{}") for part in path.split("/") if part.startswith("{")}


def test_every_operation_can_fail_with_a_problem(document: dict[str, Any]) -> None:
    for methods in document["paths"].values():
        for operation in methods.values():
            assert "application/problem+json" in operation["responses"]["500"]["content"]


def test_event_streams_name_the_schema_of_every_kind(document: dict[str, Any]) -> None:
    for path, method in (("/v1/jobs", "post"), ("/v1/jobs/{id}/events", "get")):
        content = document["paths"][path][method]["responses"]["200"]["content"]
        assert content["text/event-stream"]["schema"] == {"$ref": "#/components/schemas/JobEvent"}
    mapping = document["components"]["schemas"]["JobEvent"]["discriminator"]["mapping"]
    assert {"queued", "started", "snapshot", "text", "tool", "retrying", "requeued", *TERMINAL_KINDS} == set(mapping)


def test_a_real_event_matches_its_schema(document: dict[str, Any]) -> None:
    schema = {**document, "$ref": "#/components/schemas/JobEvent"}
    validator = Draft202012Validator(schema)
    validator.validate(orjson.loads(encode_event("text", "j", 0, text="hello")))
    assert not validator.is_valid({"kind": "text", "job_id": "j"})
