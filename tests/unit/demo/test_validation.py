from typing import Any

import orjson
import pytest

from demo.errors import ProviderError
from demo.request import parse_request
from tests.unit.demo.asking import CALCULATOR, assistant, request, tool, user

SYSTEM = {"role": "system", "content": "Be brief."}


def call(*ids: str, arguments: str = "{}", **fields: Any) -> dict[str, Any]:
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": arguments}} for name in ids]
    return {"role": "assistant", "tool_calls": calls, **fields}


def result(name: str, content: Any = "1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": content}


@pytest.mark.parametrize("model", ["demo", "demo-strict"])
@pytest.mark.parametrize(
    "messages",
    [
        [user("hi")],
        [SYSTEM, user("hi"), assistant("Hello."), user("again")],
        [user("hi"), call("a", "b"), result("b"), result("a")],
        [
            user("hi"),
            call("a", content=None),
            result("a"),
            call("a", content=""),
            result("a"),
            assistant("x"),
            user("y"),
        ],
        [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {}}]}],
        [user("hi"), call("a", content="Let me see."), result("a", [{"type": "text", "text": "1"}])],
    ],
)
def test_an_orderly_conversation_is_taken(model: str, messages: list[dict[str, Any]]) -> None:
    assert request(*messages, model=model).messages == messages


REFUSED_MESSAGES = [
    pytest.param([], "messages", id="no messages"),
    pytest.param(["hi"], "messages[0]", id="no object"),
    pytest.param([{"role": "robot", "content": "x"}], "messages[0]", id="unknown role"),
    pytest.param([{"role": "user", "content": None}], "messages[0].content", id="null user content"),
    pytest.param([{"role": "user"}], "messages[0].content", id="no user content"),
    pytest.param([{"role": "user", "content": []}], "messages[0].content", id="no parts"),
    pytest.param([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]", id="part without text"),
    pytest.param([{"role": "user", "content": [{"type": []}]}], "messages[0].content[0]", id="odd part"),
    pytest.param([user("x"), assistant("")], "messages[1]", id="empty assistant turn"),
    pytest.param([user("x"), {"role": "assistant", "content": None}], "messages[1]", id="null assistant turn"),
    pytest.param([user("x"), call()], "messages[1].tool_calls", id="empty tool calls"),
    pytest.param([user("x"), call(content="text")], "messages[1].tool_calls", id="empty tool calls beside text"),
    pytest.param([user("x"), result("a")], "messages[1]", id="orphan tool message"),
    pytest.param([user("x"), call("a"), result("b")], "messages[2]", id="result of another call"),
    pytest.param([user("x"), call("a"), result("a"), result("a")], "messages[3]", id="second result"),
    pytest.param([user("x"), call("a"), result("a", None)], "messages[2].content", id="null result"),
    pytest.param([user("x"), call("a")], "messages", id="calls without results"),
    pytest.param([user("x"), call("a", "b"), result("a"), user("y")], "messages[3]", id="a call without result"),
    pytest.param([user("x"), call("a"), user("y"), result("a")], "messages[2]", id="result in the wrong place"),
    pytest.param([user("x"), call("a", "a"), result("a")], "messages[1].tool_calls[1].id", id="same id twice"),
    pytest.param([user("x"), call(""), result("")], "messages[1].tool_calls[0].id", id="empty id"),
    pytest.param(
        [user("x"), {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f"}}]}],
        "messages[1].tool_calls[0].function.arguments",
        id="no arguments",
    ),
]


@pytest.mark.parametrize("model", ["demo", "demo-strict"])
@pytest.mark.parametrize(("messages", "param"), REFUSED_MESSAGES)
def test_every_model_refuses_a_broken_conversation(model: str, messages: list[Any], param: str) -> None:
    with pytest.raises(ProviderError) as caught:
        parse_request(_body(model=model, messages=messages))
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.payload()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"messages": "hi"}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"stop": 3}, "stop"),
        ({"user": 3}, "user"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema"),
        ({"tools": []}, "tools"),
        ({"tools": {}}, "tools"),
        ({"tools": [{}]}, "tools[0]"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [CALCULATOR, CALCULATOR]}, "tools[1].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tools": [CALCULATOR], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [CALCULATOR], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ],
)
def test_every_model_refuses_wrong_options(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ProviderError) as caught:
        parse_request(_body(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"3", b'{"model": "demo", "messages": [{"content": "\\ud83d"}]}'])
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ProviderError):
        parse_request(raw)


ONLY_STRICT = [
    pytest.param([user("x"), user("y")], {}, "messages[1]", id="two user turns"),
    pytest.param([user("x"), assistant("a"), assistant("b"), user("y")], {}, "messages[2]", id="two assistant turns"),
    pytest.param([assistant("a"), user("x")], {}, "messages[0]", id="assistant first"),
    pytest.param([user("x"), SYSTEM, user("y")], {}, "messages[1]", id="late system message"),
    pytest.param([user("x"), assistant("a")], {}, "messages", id="assistant last"),
    pytest.param([user(" ")], {}, "messages[0].content", id="blank user text"),
    pytest.param([user("x"), call("a", arguments="{"), result("a")], {}, "messages[1]", id="arguments no JSON"),
    pytest.param([user("x"), call("a", arguments="[]"), result("a")], {}, "messages[1]", id="arguments no object"),
    pytest.param([{**user("x"), "id": "1"}], {}, "messages[0].id", id="unknown message field"),
    pytest.param([user("x")], {"stream_usage": True}, "stream_usage", id="unknown field"),
]


@pytest.mark.parametrize(("messages", "fields", "param"), ONLY_STRICT)
def test_only_the_strict_model_refuses_what_openai_takes(
    messages: list[dict[str, Any]], fields: dict[str, Any], param: str
) -> None:
    assert parse_request(_body(messages=messages, **fields)).messages == messages
    with pytest.raises(ProviderError) as caught:
        parse_request(_body(model="demo-strict", messages=messages, **fields))
    assert caught.value.param == param


def _body(**fields: Any) -> bytes:
    return orjson.dumps({"model": "demo", "messages": [user("hi")], **fields})
