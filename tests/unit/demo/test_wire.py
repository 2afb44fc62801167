import orjson
import pytest

from demo.reply import Call, Reply
from demo.wire import Wire
from tests.unit.demo.asking import ALL_TOOLS, chunks, deltas, finish, scene, sent, text

AWKWARD = 'Tabs\t, "quotes", \\, é, 😀,\n\nand  two spaces. '


def test_a_stream_is_role_text_finish_and_done() -> None:
    response = scene("[say:Hello there.]").answer()
    assert deltas(response) == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Hello"},
        {"content": " there."},
        {},
    ]
    assert finish(response) == "stop"
    assert sent(response).endswith(b"\n\ndata: [DONE]\n\n")


def test_all_chunks_have_the_same_head() -> None:
    found = list(chunks(scene("hello").answer()))
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in found} == {
        ("chatcmpl-1", "chat.completion.chunk", "demo")
    }


@pytest.mark.parametrize("said", ["", " ", "x", AWKWARD, AWKWARD * 50, "null", '"\0"', "\\u0000"])
def test_the_joined_deltas_are_the_text_exactly(said: str) -> None:
    asked = scene(f"[say:{orjson.dumps(said).decode()}]")
    assert asked.reply.text == said
    assert text(asked.answer()) == said


def test_usage_comes_last_and_only_if_it_was_asked_for() -> None:
    *others, last = chunks(scene("[say:Hello there.]", stream_options={"include_usage": True}).answer())
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert all(chunk["usage"] is None for chunk in others)
    assert all("usage" not in chunk for chunk in chunks(scene("hello").answer()))


def test_tool_calls_are_streamed_with_their_head_first() -> None:
    response = scene("What is 17 * 23 and what time is it?", tools=ALL_TOOLS).answer()
    parts = [delta["tool_calls"][0] for delta in deltas(response)[1:-1]]
    heads = [part for part in parts if "id" in part]
    assert [
        (part["index"], part["type"], part["function"]["name"], part["function"]["arguments"]) for part in heads
    ] == [
        (0, "function", "calculator", ""),
        (1, "function", "current_time", ""),
    ]
    written = [part["function"]["arguments"] for part in parts if part["index"] == 0]
    assert "".join(written) == '{"expression":"17 * 23"}'
    assert len(written) > 2
    assert finish(scene("what is 1 + 2", tools=ALL_TOOLS).answer()) == "tool_calls"


def test_large_arguments_are_streamed_in_a_bounded_number_of_pieces() -> None:
    call = Call("a", "f", orjson.dumps({"text": "x" * 100_000}).decode())
    assert "".join(call.slices()) == call.arguments
    assert len(list(call.slices())) <= 64


def test_a_completion_holds_what_a_stream_would() -> None:
    asked = scene("[say:Hello there.]", stream=False)
    completion = orjson.loads(sent(asked.answer()))
    assert completion["object"] == "chat.completion"
    assert completion["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert completion["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_a_completion_with_calls_has_null_content() -> None:
    message = orjson.loads(Wire("x", 0, "demo").completion(Reply(calls=(Call("a", "f", "{}"),)), 1))["choices"][0][
        "message"
    ]
    assert message["content"] is None
    assert message["tool_calls"] == [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
