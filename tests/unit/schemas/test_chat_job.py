"""The border: what a chat job must be, and what is said of one that is not."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from schemas.border_text import parse_json
from schemas.chat_job import (
    MESSAGE_MAX_BYTES,
    METADATA_MAX_BYTES,
    NOT_YET_FIELDS,
    ChatJob,
    Parameters,
)
from schemas.errors import NotYet, RequestError
from schemas.ids import new_id
from tests.unit.schemas.border import CALL, RESULT, USER, UUID, refusal


def test_a_message_is_enough() -> None:
    job = ChatJob.from_request({"message": "hello"})
    assert (job.message, job.queue, job.tenant, job.priority) == ("hello", "chat", "default", 0)
    assert (job.deadline_s, job.if_busy, job.tools, job.version) == (3600, "enqueue", None, 1)
    assert job.job_id != ChatJob.from_request({"message": "hello"}).job_id


def test_a_job_is_frozen() -> None:
    with pytest.raises(ValidationError):
        ChatJob(message="hello").message = "bye"


def test_a_producers_id_is_kept_in_its_canonical_form() -> None:
    assert ChatJob.from_request({"message": "x", "job_id": UUID.replace("-", "").upper()}).job_id == UUID


@pytest.mark.parametrize("data", [None, [], "message", 1, [{"message": "x"}]])
def test_a_job_is_an_object(data: Any) -> None:
    assert refusal(data).reason == "a chat job is a JSON object"


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


#: What is wrong with `{"message": "hello", <field>: <value>}`.
WRONG: list[tuple[str, Any, str]] = [
    ("job_id", "not-a-uuid", "job_id"),
    ("job_id", 7, "job_id"),
    ("session_id", "", "session_id"),
    ("tenant", "", "tenant"),
    ("tenant", "a/b", "tenant"),
    ("tenant", "a" * 65, "tenant"),
    ("tenant", "a\n", "tenant"),
    ("user_id", "", "user_id"),
    ("user_id", "u" * 129, "user_id"),
    ("message", 7, "message"),
    ("message", ["hello"], "message"),
    ("message", "x" * (MESSAGE_MAX_BYTES + 1), "message"),
    ("message", "é" * (MESSAGE_MAX_BYTES // 2 + 1), "message"),
    ("message", "", "message"),
    ("message", " \n\t", "message"),
    ("messages", [USER], "messages"),
    ("reply_to", UUID, "reply_to"),
    ("system", "x" * (MESSAGE_MAX_BYTES + 1), "system"),
    ("agent_framework", "", "agent_framework"),
    ("agent_framework", "no spaces", "agent_framework"),
    ("model", "m" * 129, "model"),
    ("model", "-m", "model"),
    ("model", "m\n", "model"),
    ("language", "english!", "language"),
    ("language", "e", "language"),
    ("language", "en" + "-x1" * 20, "language"),
    ("tools", "calculator", "tools"),
    ("tools", ["ok", ""], "tools.1"),
    ("tools", ["t"] * 129, "tools"),
    ("queue", "a.b", "queue"),
    ("queue", "a:b", "queue"),
    ("queue", "q" * 65, "queue"),
    ("queue", "", "queue"),
    ("priority", 101, "priority"),
    ("priority", -101, "priority"),
    ("priority", 1.5, "priority"),
    ("priority", "1", "priority"),
    ("priority", True, "priority"),
    ("priority", 2**70, "priority"),
    ("deadline_s", 0, "deadline_s"),
    ("deadline_s", -1, "deadline_s"),
    ("deadline_s", 7 * 86_400 + 1, "deadline_s"),
    ("deadline_s", float("inf"), "deadline_s"),
    ("deadline_s", float("nan"), "deadline_s"),
    ("deadline_s", "60", "deadline_s"),
    ("if_busy", "never", "if_busy"),
    ("version", 2, "version"),
    ("parameters", None, "parameters"),
    ("parameters", {"temperature": 2.1}, "parameters.temperature"),
    ("parameters", {"temperature": "1"}, "parameters.temperature"),
    ("parameters", {"top_p": 0}, "parameters.top_p"),
    ("parameters", {"max_tokens": 0}, "parameters.max_tokens"),
    ("parameters", {"max_tokens": 2**31}, "parameters.max_tokens"),
    ("parameters", {"seed": 2**63}, "parameters.seed"),
    ("parameters", {"seed": 1.5}, "parameters.seed"),
    ("parameters", {"stop": ["a"] * 5}, "parameters.stop"),
    ("parameters", {"presence_penalty": 3}, "parameters.presence_penalty"),
    ("parameters", {"logit_bias": {}}, "parameters.logit_bias"),
    ("metadata", [], "metadata"),
    ("metadata", None, "metadata"),
    ("metadata", {"a": "x" * METADATA_MAX_BYTES}, "metadata"),
    ("metadata", nested(300), "metadata"),
    ("metadata", {"a": 2**70}, "metadata"),
    ("mood", "x", "mood"),
]


@pytest.mark.parametrize(
    ("field", "value", "named"), WRONG, ids=[f"{name}-{n}" for n, (name, _, _) in enumerate(WRONG)]
)
def test_what_is_wrong_is_named_with_a_reason(field: str, value: Any, named: str) -> None:
    refused = refusal({"message": "hello", field: value})
    assert refused.field == named
    assert 5 < len(refused.reason) < 200
    assert (refused.status, refused.code) == (422, "invalid")
    assert refused.to_job_error().retryable is False


def test_an_unknown_field_is_said_to_be_one() -> None:
    assert refusal({"message": "hello", "mood": "x"}).reason == "this field is unknown"


NOT_YET_VALUES: dict[str, Any] = {
    "images": [],
    "edit_of": UUID,
    "context": "",
    "tool_secrets": {},
    "response_format": {},
    "variant": "",
    "webhook_url": "https://example.org",
}


@pytest.mark.parametrize("field", NOT_YET_FIELDS)
def test_a_field_whose_feature_is_not_there_is_refused_and_never_ignored(field: str) -> None:
    refused = refusal({"message": "hello", field: NOT_YET_VALUES[field]})
    assert isinstance(refused, NotYet)
    assert (refused.field, refused.code, refused.status) == (field, "not_yet", 422)
    assert ChatJob.from_request({"message": "hello", field: None}).message == "hello"


@pytest.mark.parametrize("if_busy", ["enqueue", "reject", "interrupt"])
def test_a_job_says_what_is_to_happen_in_a_busy_session(if_busy: str) -> None:
    assert ChatJob.from_request({"message": "hello", "if_busy": if_busy}).if_busy == if_busy


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({}, "message"),
        ({"session_id": UUID}, "message"),
        ({"message": "x", "messages": [USER]}, "messages"),
        ({"message": "x", "reply_to": UUID, "session_id": UUID}, "reply_to"),
        ({"messages": [USER], "reply_to": UUID, "session_id": UUID}, "reply_to"),
        ({"reply_to": UUID}, "session_id"),
        ({"messages": [USER], "session_id": UUID}, "messages"),
        ({"messages": []}, "messages"),
    ],
)
def test_exactly_one_thing_is_asked(data: dict[str, Any], field: str) -> None:
    assert refusal(data).field == field


def test_sizes_are_of_bytes_and_the_largest_fits() -> None:
    largest = "é" * (MESSAGE_MAX_BYTES // 2)
    assert ChatJob.from_request({"message": largest}).message == largest
    assert ChatJob.from_request({"message": "x", "system": largest}).system == largest
    filler = "x" * (METADATA_MAX_BYTES - len('{"a":""}'))
    assert ChatJob.from_request({"message": "x", "metadata": {"a": filler}}).metadata == {"a": filler}


def test_whole_numbers_serve_as_seconds_and_floats() -> None:
    job = ChatJob.from_request({"message": "x", "deadline_s": 60, "parameters": {"temperature": 1}})
    assert (job.deadline_s, job.parameters.temperature) == (60, 1)


BODIES = [
    b'{"message":"a\\u0000b\\ud800c\\ud83d\\ude0b","metadata":{"k\\u0000":"\\udfff"}}',
    '{"message":"a\x00b\ud800c\ud83d\ude0b","metadata":{"k\x00":"\udfff"}}'.replace("\x00", "\\u0000"),
]


@pytest.mark.parametrize("body", BODIES)
def test_what_cannot_be_stored_is_replaced_at_the_border(body: bytes | str) -> None:
    job = ChatJob.from_request(parse_json(body))
    assert job.message == "a\ufffdb\ufffdc😋"
    assert job.metadata == {"k\ufffd": "\ufffd"}


@pytest.mark.parametrize("extra", ["", ',"user_id":"\\u0000"'], ids=["fast", "slow"])
@pytest.mark.parametrize(
    "body",
    [
        '"metadata":{"a":1e400}',
        '"metadata":{"a":NaN}',
        f'"metadata":{"[" * 300}{"]" * 300}',
        '"parameters":{"seed":1180591620717411303424}',
    ],
    ids=["too large", "not a number", "too deep", "a huge seed"],
)
def test_no_body_is_accepted_that_could_not_be_stored(extra: str, body: str) -> None:
    with pytest.raises(RequestError):
        ChatJob.from_request(parse_json(f'{{"message":"x",{body}{extra}}}'))


def test_every_accepted_job_can_be_written_and_read_back() -> None:
    job = ChatJob.from_request(
        {
            "job_id": UUID,
            "tenant": "t",
            "user_id": "u",
            "messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT, USER],
            "agent_framework": "echo",
            "model": "org/model:7b@x",
            "system": "",
            "parameters": {"temperature": 0, "seed": -(2**63), "stop": []},
            "tools": [],
            "language": "zh-Hant-TW",
            "priority": -100,
            "metadata": {"a": [1, None, {"b": 2**64 - 1}]},
        }
    )
    stored = orjson.loads(orjson.dumps(job.to_json()))
    assert ChatJob.from_stored(stored) == job
    assert ChatJob.from_request(stored) == job


def test_stored_rows_are_read_leniently() -> None:
    stored = {
        **ChatJob(message="hello", job_id=UUID).to_json(),
        "version": 3,
        "hologram": {"a": 1},
        "parameters": {"temperature": 1.0, "mood": "x"},
    }
    job = ChatJob.from_stored(stored)
    assert (job.message, job.job_id, job.version) == ("hello", UUID, 1)
    assert job.parameters == Parameters(temperature=1.0)
    assert ChatJob.from_stored({"message": "hello", "parameters": None}).parameters == Parameters()


def test_ids_of_jobs_made_here_sort_by_their_making() -> None:
    made = [ChatJob(message="x").job_id for _ in range(50)]
    assert made == sorted(made)
    assert new_id() > made[-1]
