"""A reply is put together from chunks; its tool calls are never guessed at."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk

from graph.reply import Reply
from schemas.errors import AgentInvocationError


def reply_of(*chunks: AIMessageChunk) -> Reply:
    reply = Reply()
    for chunk in chunks:
        reply.add(chunk)
    reply.end()
    return reply


def pieces(*calls: dict[str, Any]) -> AIMessageChunk:
    """A chunk with pieces of tool calls; what is not given is None, as ChatOpenAI leaves it."""
    full = [{"name": None, "args": None, "id": None, "index": None, "type": "tool_call_chunk"} | call for call in calls]
    return AIMessageChunk(content="", tool_call_chunks=full)  # type: ignore[arg-type] # plain dicts are what it takes


def finished(reason: str) -> AIMessageChunk:
    return AIMessageChunk(content="", response_metadata={"finish_reason": reason})


def calls_of(*chunks: AIMessageChunk) -> list[tuple[str, str, dict[str, Any]]]:
    calls, invalid = reply_of(*chunks).calls((), "0")
    assert not invalid
    return [(call["id"], call["name"], call["args"]) for call in calls]


def test_text_is_shown_as_it_comes() -> None:
    reply = Reply()

    assert [reply.add(AIMessageChunk(content=text)) for text in ("Hel", "", "lo")] == ["Hel", "", "lo"]
    assert reply.text == "Hello"


def test_half_a_character_waits_for_its_other_half() -> None:
    reply = Reply()

    assert reply.add(AIMessageChunk(content="a\ud83d")) == "a"
    assert reply.add(AIMessageChunk(content="\ude00b")) == "\U0001f600b"


def test_half_a_character_at_the_end_is_replaced() -> None:
    reply = Reply()
    reply.add(AIMessageChunk(content="a\ud83d"))

    assert reply.end() == "\ufffd"
    assert reply.text == "a\ufffd"


def test_the_last_of_several_running_usages_counts() -> None:
    usages = [{"input_tokens": 5, "output_tokens": n, "total_tokens": 5 + n} for n in (1, 2, 3)]
    reply = reply_of(*[AIMessageChunk(content="x", usage_metadata=usage) for usage in usages])  # type: ignore[arg-type] # as above

    assert reply.usage == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


def test_arguments_in_pieces_are_joined() -> None:
    head = {"index": 0, "id": "a", "name": "f"}

    assert calls_of(pieces(head), pieces({"index": 0, "args": '{"x":'}), pieces({"index": 0, "args": "1}"})) == [
        ("a", "f", {"x": 1})
    ]


def test_two_calls_whose_pieces_come_in_turns_are_kept_apart_by_their_index() -> None:
    chunks = [
        pieces({"index": 0, "id": "a", "name": "f"}, {"index": 1, "id": "b", "name": "g"}),
        pieces({"index": 1, "args": '{"y":'}),
        pieces({"index": 0, "args": '{"x":1}'}),
        pieces({"index": 1, "args": "2}"}),
    ]

    assert calls_of(*chunks) == [("a", "f", {"x": 1}), ("b", "g", {"y": 2})]


def test_calls_without_index_are_kept_apart_by_their_ids() -> None:
    whole = [pieces({"id": "a", "name": "f", "args": '{"x":1}'}), pieces({"id": "b", "name": "f", "args": '{"x":2}'})]
    split = [
        pieces({"id": "a", "name": "f", "args": '{"x":'}),
        pieces({"args": "1}"}),
        pieces({"id": "b", "name": "f", "args": ""}),
        pieces({"id": "b", "args": '{"x":2}'}),
    ]

    assert calls_of(*whole) == calls_of(*split) == [("a", "f", {"x": 1}), ("b", "f", {"x": 2})]


def test_pieces_that_could_belong_to_either_of_two_calls_are_an_error() -> None:
    reply = reply_of(pieces({"id": "a", "name": "f", "args": '{"x":'}, {"id": "b", "name": "g", "args": '{"y":'}))

    with pytest.raises(AgentInvocationError, match="told apart") as caught:
        reply.add(pieces({"args": "1}"}))
    assert caught.value.retryable


def test_calls_with_the_same_index_and_different_ids_are_two() -> None:
    chunks = [
        pieces({"index": 0, "id": "a", "name": "f", "args": '{"x":1}'}),
        pieces({"index": 0, "id": "b", "name": "f", "args": '{"x":2}'}),
    ]

    assert calls_of(*chunks) == [("a", "f", {"x": 1}), ("b", "f", {"x": 2})]


def test_a_new_id_with_every_piece_does_not_make_new_calls() -> None:
    chunks = [
        pieces({"index": 0, "id": "a", "name": "f", "args": '{"x":'}),
        pieces({"index": 0, "id": "b", "args": "1}"}),
    ]

    assert calls_of(*chunks) == [("a", "f", {"x": 1})]


def test_an_id_and_a_name_repeated_with_every_piece_are_taken_once() -> None:
    head = {"index": 0, "id": "a", "name": "f"}
    chunks = [pieces({**head, "args": '{"x":'}), pieces({**head, "args": "1}"}), pieces({**head, "args": ""})]

    assert calls_of(*chunks) == [("a", "f", {"x": 1})]


def test_whole_calls_with_neither_index_nor_id_are_kept_apart() -> None:
    chunks = [pieces({"name": "f", "args": '{"x":1}'}), pieces({"name": "f", "args": '{"x":2}'})]

    assert calls_of(*chunks) == [("call_0_0", "f", {"x": 1}), ("call_0_1", "f", {"x": 2})]


def test_missing_ids_are_the_same_for_the_same_reply() -> None:
    chunk = pieces({"index": 0, "name": "f", "args": "{}"})

    assert calls_of(chunk) == calls_of(chunk) == [("call_0_0", "f", {})]


def test_ids_that_are_taken_get_a_number() -> None:
    same = [pieces({"index": index, "id": "a", "name": "f"}) for index in (0, 1)]

    calls, _ = reply_of(*same).calls({"a"}, "0")

    assert [call["id"] for call in calls] == ["a-2", "a-3"]


@pytest.mark.parametrize("arguments", ['{"city":"Par', '{"x": y}', "[1]", '{"a":1}{"b":2}'])
def test_arguments_that_are_not_a_whole_object_make_a_call_invalid(arguments: str) -> None:
    chunk = pieces({"index": 0, "id": "a", "name": "f", "args": arguments})

    calls, invalid = reply_of(chunk, finished("tool_calls")).calls((), "0")

    assert calls == [{"id": "a", "name": "f", "args": {}}]
    assert list(invalid) == ["a"]


def test_no_arguments_are_an_empty_object_unless_the_token_limit_cut_them() -> None:
    chunk = pieces({"index": 0, "id": "a", "name": "f"})

    assert reply_of(chunk, finished("tool_calls")).calls((), "0")[1] == {}
    assert "token limit" in reply_of(chunk, finished("length")).calls((), "0")[1]["a"]


@pytest.mark.parametrize(("name", "kept"), [("functions.f", "functions_f"), ("", "unnamed"), ("é" * 99, "_" * 64)])
def test_a_name_that_providers_would_refuse_is_made_acceptable(name: str, kept: str) -> None:
    calls, _ = reply_of(pieces({"index": 0, "id": "a", "name": name})).calls((), "0")

    assert calls[0]["name"] == kept
