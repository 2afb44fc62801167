"""Messages keep their meaning in every shape."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.messages import from_langchain, from_openai, parse_arguments, text_of, to_langchain, to_openai
from schemas.agent_message import ChatMessage

#: What can be stored: the border has replaced NUL and lone surrogates.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
NAMES = st.text("aZ0_-", min_size=1, max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
JSON = SCALARS | TEXTS | st.lists(SCALARS, max_size=2) | st.dictionaries(TEXTS, TEXTS, max_size=2)
CALLS = st.lists(
    st.fixed_dictionaries({"id": NAMES, "name": NAMES, "args": st.dictionaries(TEXTS, JSON, max_size=2)}),
    min_size=1,
    max_size=2,
)


@st.composite
def chat_messages(draw: st.DrawFn) -> ChatMessage:
    role = draw(st.sampled_from(["system", "user", "assistant", "tool"]))
    fields: dict[str, Any] = {"role": role, "content": draw(TEXTS)}
    if role == "assistant":
        fields["tool_calls"] = draw(st.none() | CALLS)
    if role == "tool":
        fields["tool_call_id"] = draw(NAMES)
    return ChatMessage.model_validate(fields)


@given(chat_messages())
def test_to_langchain_and_back_is_the_identity(message: ChatMessage) -> None:
    assert from_langchain(to_langchain(message)) == message


@given(chat_messages())
def test_to_an_openai_payload_and_back_is_the_identity(message: ChatMessage) -> None:
    assert from_langchain(from_openai(to_openai(to_langchain(message)))) == message


@given(chat_messages())
def test_no_provider_is_sent_a_null_or_an_empty_list(message: ChatMessage) -> None:
    payload = to_openai(to_langchain(message))

    assert None not in payload.values()
    assert [] not in payload.values()
    assert payload.get("content") != "" or "tool_calls" not in payload


def test_a_developer_message_becomes_a_system_message() -> None:
    assert from_langchain(from_openai({"role": "developer", "content": "x"})).role == "system"


def test_the_text_parts_of_a_content_list_are_joined() -> None:
    assert text_of(["a", {"type": "text", "text": "b"}, {"type": "image_url"}, {"type": "text"}]) == "ab"


@pytest.mark.parametrize("text", ["", "  ", "{}"])
def test_no_arguments_at_all_are_an_empty_object(text: str) -> None:
    assert parse_arguments(text) == {}


@pytest.mark.parametrize(
    "text", ['{"city":"Par', '{"x": y}', "[1]", '"{}"', "null", "{} {}", '{"a": NaN}', "{'a': 1}", '{"a":1}}']
)
def test_arguments_that_are_not_one_json_object_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the arguments|the JSON|a number"):
        parse_arguments(text)


def test_arguments_are_made_storable() -> None:
    assert parse_arguments('{"a": "x\\u0000y\\ud83d"}') == {"a": "x\ufffdy\ufffd"}
