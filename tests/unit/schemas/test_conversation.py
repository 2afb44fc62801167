"""A conversation sent inline: OpenAI-shaped, and whole."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.chat_job import (
    MESSAGE_MAX_BYTES,
    ChatJob,
    conversation_of,
)
from tests.unit.schemas.border import CALL, RESULT, USER, refusal


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **fields}


CONVERSATIONS: list[tuple[str, list[dict[str, Any]], str]] = [
    ("ends with the assistant", [USER, assistant(content="hi")], "messages"),
    ("ends with a result", [USER, assistant(tool_calls=[CALL]), RESULT], "messages"),
    ("ends with the system", [{"role": "system", "content": "x"}], "messages"),
    ("an empty question", [{"role": "user", "content": " "}], "messages.0.content"),
    ("no question at all", [{"role": "user"}], "messages.0.content"),
    ("an empty answer", [USER, assistant(), USER], "messages.1.content"),
    ("an answer with an empty list of calls", [USER, assistant(tool_calls=[]), USER], "messages.1.content"),
    ("a call without its result", [USER, assistant(tool_calls=[CALL]), USER], "messages.2"),
    ("a result without its call", [USER, RESULT, USER], "messages.1.tool_call_id"),
    (
        "a result without an id",
        [USER, assistant(tool_calls=[CALL]), {"role": "tool", "content": "x"}, USER],
        "messages.2.tool_call_id",
    ),
    ("a result twice", [USER, assistant(tool_calls=[CALL]), RESULT, RESULT, USER], "messages.3.tool_call_id"),
    ("a call's id twice", [USER, assistant(tool_calls=[CALL, CALL]), RESULT, USER], "messages.1.tool_calls"),
    ("one result of two", [USER, assistant(tool_calls=[CALL, {**CALL, "id": "c2"}]), RESULT, USER], "messages.3"),
    ("an unknown role", [{"role": "narrator", "content": "x"}, USER], "messages.0.role"),
    ("an unknown field", [{**USER, "mood": "x"}], "messages.0.mood"),
    (
        "a part that is no text",
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "messages.0.content",
    ),
    ("a long question", [{"role": "user", "content": "x" * (MESSAGE_MAX_BYTES + 1)}], "messages.0.content"),
]


@pytest.mark.parametrize(("_", "messages", "field"), CONVERSATIONS, ids=[name for name, _, _ in CONVERSATIONS])
def test_a_conversation_is_what_a_strict_provider_would_take(_: str, messages: list[Any], field: str) -> None:
    refused = refusal({"messages": messages})
    assert refused.field is not None
    assert refused.field.startswith(field)
    assert refused.reason


@pytest.mark.parametrize(
    "arguments",
    ["[1]", "1", "null", '"x"', '{"a":', '{"a":NaN}', "nonsense", '{"a":' * 300 + "1" + "}" * 300],
)
def test_arguments_of_a_call_are_an_object_in_a_string(arguments: str) -> None:
    call = {**CALL, "function": {"name": "clock", "arguments": arguments}}
    refused = refusal({"messages": [USER, assistant(tool_calls=[call]), RESULT, USER]})
    assert refused.field == "messages.1.tool_calls.0.function.arguments"


def test_a_conversation_is_read_into_neutral_messages() -> None:
    job = ChatJob.from_request(
        {
            "messages": [
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "what "}, {"type": "text", "text": "time?"}]},
                assistant(tool_calls=[{**CALL, "function": {"name": "clock", "arguments": '{"zone":"\\u0000"}'}}]),
                RESULT,
                assistant(content="noon"),
                {**USER, "name": "ann"},
            ]
        }
    )
    assert job.messages is not None
    neutral = conversation_of(job.messages)
    assert [(message.role, message.content) for message in neutral] == [
        ("system", "be brief"),
        ("user", "what time?"),
        ("assistant", ""),
        ("tool", "noon"),
        ("assistant", "noon"),
        ("user", "hello"),
    ]
    assert neutral[2].tool_calls == [{"id": "c1", "name": "clock", "args": {"zone": "\ufffd"}}]
    assert neutral[3].tool_call_id == "c1"
    assert neutral[4].tool_calls is None


def test_calls_without_arguments_have_none() -> None:
    for arguments in ({}, {"arguments": ""}, {"arguments": "{}"}):
        call = {"id": "c1", "function": {"name": "clock", **arguments}}
        messages = [USER, assistant(tool_calls=[call]), RESULT, USER]
        parsed = ChatJob.from_request({"messages": messages}).messages
        assert parsed is not None
        assert conversation_of(parsed)[1].tool_calls == [{"id": "c1", "name": "clock", "args": {}}]


def test_results_may_come_in_any_order() -> None:
    calls = [CALL, {**CALL, "id": "c2"}]
    messages = [USER, assistant(tool_calls=calls), {**RESULT, "tool_call_id": "c2"}, RESULT, USER]
    assert ChatJob.from_request({"messages": messages}).messages is not None
