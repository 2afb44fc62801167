"""What each kind of fault puts on the wire. The connection's own faults are tested through sockets."""

import orjson
import pytest

from demo.errors import ProviderError
from demo.response import Stop
from tests.unit.demo.asking import (
    ALL_TOOLS,
    CALCULATOR,
    CLOCK,
    actions,
    assistant,
    chunks,
    deltas,
    finish,
    play,
    reply,
    scene,
    sent,
    text,
    user,
    with_results,
)

SAID = "[say:One two three fóur.]"
TWO_TOOLS = "What is 17 * 23 and what time is it?"


def body(fault: str, said: str = SAID) -> bytes:
    return sent(play(fault, said))


@pytest.mark.parametrize("code", [400, 401, 403, 404, 408, 409, 422, 429, 500, 502, 503, 529])
def test_statuses_have_an_error_object(code: int) -> None:
    response = play(f"status-{code}", "hi")
    assert response.status == code
    assert set(orjson.loads(sent(response))["error"]) == {"message", "type", "param", "code"}
    assert response.headers == ({"retry-after": "1"} if code in (429, 503, 529) else {})


def test_retry_after_is_what_the_text_says() -> None:
    assert play("status-429", "[retry-after=7]").headers == {"retry-after": "7"}
    assert play("status-429", "[retry-after=0.5]").headers == {"retry-after": "0.5"}
    assert play("rate-limit-date", "hi").headers["retry-after"].endswith("GMT")
    assert play("rate-limit-bare", "hi").headers == {}


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("context-length", 400, "context_length_exceeded"),
        ("insufficient-quota", 429, "insufficient_quota"),
        ("prompt-blocked", 400, "content_filter"),
        ("status-401", 401, "invalid_api_key"),
        ("status-429", 429, "rate_limit_exceeded"),
    ],
)
def test_errors_have_the_codes_that_tell_them_apart(fault: str, status: int, code: str) -> None:
    response = play(fault, "hi")
    assert (response.status, orjson.loads(sent(response))["error"]["code"]) == (status, code)


@pytest.mark.parametrize(("fault", "content"), [("refuses-null-content", None), ("refuses-empty-content", "")])
def test_one_shape_of_content_is_refused_and_the_other_taken(fault: str, content: str | None) -> None:
    called, answer = with_results(reply("what time is it", tools=[CLOCK]), "noon")
    with pytest.raises(ProviderError):
        play(fault, "what time is it", {**called, "content": content}, answer, tools=[CLOCK])
    other = "" if content is None else None
    assert play(fault, "what time is it", {**called, "content": other}, answer, tools=[CLOCK]).status == 200


def test_reasoning_must_come_back_with_the_result() -> None:
    first = play("reasoning-required", "hi", tools=[CLOCK])
    thought = "".join(delta.get("reasoning_content", "") for delta in deltas(first))
    called, answer = with_results(reply("hi", tools=[CLOCK], tool_choice="required"), "noon")
    assert thought
    assert finish(first) == "tool_calls"
    with pytest.raises(ProviderError):
        play("reasoning-required", "hi", called, answer, tools=[CLOCK])
    second = play("reasoning-required", "hi", {**called, "reasoning_content": thought}, answer, tools=[CLOCK])
    assert "noon" in text(second)


@pytest.mark.parametrize(
    "fault",
    [
        "crlf", "cr", "crlf-split", "no-space", "comments", "retry-lines", "event-names", "data-lines", "bom",
        "byte-by-byte", "split-characters", "one-write",
    ],
)  # fmt: skip
@pytest.mark.parametrize("said", [SAID, TWO_TOOLS])
def test_odd_framing_carries_the_whole_answer(fault: str, said: str) -> None:
    asked = scene(said, tools=ALL_TOOLS, model=f"demo-fault-{fault}")
    expected = [payload if payload == b"[DONE]" else orjson.loads(payload) for payload in asked.payloads()]
    assert _read_events(sent(play(fault, said, tools=ALL_TOOLS))) == expected


def _read_events(stream: bytes) -> list[object]:
    """The payloads by the rules of server-sent events: CR, LF or CR LF end a line, data lines are joined."""
    lines = stream.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    events: list[list[bytes]] = [[]]
    for line in lines:
        if not line:
            events.append([])
        elif line.startswith(b"data:"):
            events[-1].append(line.removeprefix(b"data:").removeprefix(b" "))
    payloads = [b"\n".join(data) for data in events if data]
    return [payload if payload == b"[DONE]" else orjson.loads(payload) for payload in payloads]


def test_framing_is_as_odd_as_it_says() -> None:
    assert b"\r\n\r\n" in body("crlf")
    assert b"\n" not in body("cr")
    assert b"data: " not in body("no-space")
    assert b"id: 1\n" in body("comments")
    assert b": ping\n\n" in body("comments")
    assert body("bom").startswith(b"\xef\xbb\xbf")
    pieces = [action for action in actions(play("crlf-split", SAID)) if isinstance(action, bytes)]
    assert {piece[-1:] for piece in pieces} == {b"\r", b"\n"}
    assert not any(b"\r\n" in piece for piece in pieces)
    assert {len(action) for action in actions(play("byte-by-byte", SAID)) if isinstance(action, bytes)} == {1}
    torn = [action for action in actions(play("split-characters", SAID)) if isinstance(action, bytes)]
    assert torn[0].endswith("ó".encode()[:1])


@pytest.mark.parametrize(
    ("fault", "whole_text", "finished", "done"),
    [
        ("eof", False, False, False),
        ("eof-whole-text", True, False, False),
        ("done-no-finish", True, False, True),
        ("finish-no-done", True, True, False),
        ("only-role", False, False, False),
        ("zero-bytes", False, False, False),
        ("only-done", False, False, True),
    ],
)
def test_streams_stop_short_where_they_say(fault: str, whole_text: bool, finished: bool, done: bool) -> None:
    response = play(fault, SAID)
    stream = body(fault)
    assert b"[DONE]" in stream if done else b"[DONE]" not in stream
    assert finish(response) == ("stop" if finished else None)
    assert (text(play(fault, SAID)) == "One two three fóur.") == whole_text


def test_half_an_answer_is_half_of_its_text_or_of_its_calls() -> None:
    assert text(play("eof", SAID)) == "One two"
    written = [delta["tool_calls"][0]["function"] for delta in deltas(play("eof", TWO_TOOLS, tools=ALL_TOOLS))[1:]]
    assert "".join(function["arguments"] for function in written) == '{"expression":"1'


@pytest.mark.parametrize(
    ("fault", "ending"),
    [
        ("silence", Stop.HANG), ("silence-midway", Stop.HANG), ("no-headers", Stop.HANG),
        ("silence-after-done", Stop.HANG), ("silence-after-finish", Stop.HANG), ("reset", Stop.RESET),
        ("cut", Stop.RESET), ("cut-in-event", Stop.RESET), ("cut-close", Stop.CLOSE),
    ],
)  # fmt: skip
def test_connections_end_as_they_say(fault: str, ending: Stop) -> None:
    played = actions(play(fault, SAID))
    assert played[-1] is ending
    assert not any(isinstance(action, Stop) for action in played[:-1])


@pytest.mark.parametrize(
    ("fault", "said", "error"),
    [
        ("error-only", "", {"code": "server_error"}),
        ("error-after-text", "One two", {"code": "server_error"}),
        ("error-rate-limit", "", {"code": "rate_limit_exceeded"}),
        ("error-bad-request", "", {"code": "invalid_messages"}),
        ("error-string", "One two", "The model is gone."),
    ],
)
def test_errors_stand_in_the_stream(fault: str, said: str, error: object) -> None:
    *before, last = chunks(play(fault, SAID))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in before) == said
    assert last["error"] == error if isinstance(error, str) else last["error"]["code"] == error["code"]  # type: ignore[index]  # a dict then


def test_pauses_last_as_long_as_the_text_says() -> None:
    for fault in ("slow-headers", "slow-start", "pause"):
        waits = [action for action in actions(play(fault, "[seconds=0.25]")) if isinstance(action, float)]
        assert waits == [0.25]
    assert [action for action in actions(play("slow-start", "hi")) if isinstance(action, float)] == [2.0]


def test_faults_go_at_the_pace_that_was_asked_for() -> None:
    played = actions(play("cut", "[say:a b c d e f][pace=20][first=70]"))
    waits = [action for action in played if isinstance(action, float)]
    assert waits == [0.07, 0.02, 0.02, 0.02, 0.02, 0.05]  # role, three words, and the time to read before the reset


@pytest.mark.parametrize(
    "fault",
    [
        "no-delta",
        "null-delta",
        "null-content",
        "empty-choices",
        "null-choices",
        "no-choices",
        "usage-first",
        "unknown-fields",
    ],
)
def test_one_odd_chunk_stands_before_the_whole_answer(fault: str) -> None:
    odd, rest = sent(play(fault, SAID)).split(b"\n\n", 1)
    assert odd.startswith(b"data: {")
    assert rest == b"".join(scene(SAID, model=f"demo-fault-{fault}").frames())


@pytest.mark.parametrize(
    "fault", ["usage-everywhere", "role-everywhere", "finish-with-last-word", "finish-empty-string", "finish-unknown"]
)
def test_odd_chunks_carry_the_whole_text(fault: str) -> None:
    assert text(play(fault, SAID)) == "One two three fóur."


def test_surrogates_go_out_as_escapes_of_their_halves() -> None:
    assert rb'"a\ud83d"' in body("surrogate-split")
    assert rb'"\ude00b"' in body("surrogate-split")
    assert rb"\ude00" not in body("surrogate-lone")
    assert rb'"\ud83d"' in body("surrogate-last")
    assert rb'"a\u0000b"' in body("nul")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fault", "said", "reason"),
    [
        ("empty", "", "stop"),
        ("length", "One two", "length"),
        ("content-filter", "", "content_filter"),
        ("content-filter-after-text", "One two", "content_filter"),
        ("refusal", "", "stop"),
        ("reasoning", "One two three fóur.", "stop"),
    ],
)
def test_odd_endings_are_the_same_with_and_without_a_stream(fault: str, said: str, reason: str, stream: bool) -> None:
    response = play(fault, SAID, stream=stream)
    if stream:
        assert (text(response), finish(play(fault, SAID))) == (said, reason)
    else:
        choice = orjson.loads(sent(response))["choices"][0]
        assert (choice["message"]["content"] or "", choice["finish_reason"]) == (said, reason)
        assert bool(choice["message"]["refusal"]) == (fault == "refusal")


@pytest.mark.parametrize(
    ("fault", "reason", "arguments"),
    [
        ("args-cut-length", "length", '{"expression":"1'),
        ("args-cut-tool-calls", "tool_calls", '{"expression":"1'),
        ("args-invalid", "tool_calls", '{"x": y}'),
        ("args-list", "tool_calls", "[1, 2]"),
        ("args-empty", "tool_calls", ""),
        ("args-null", "tool_calls", '{"expression":"17 * 23"}'),
        ("tool-finish-stop", "stop", '{"expression":"17 * 23"}'),
        ("no-id", "tool_calls", '{"expression":"17 * 23"}'),
        ("names-null", "tool_calls", '{"expression":"17 * 23"}'),
        ("names-repeated", "tool_calls", '{"expression":"17 * 23"}'),
    ],
)
def test_one_call_is_wrong_in_the_way_it_says(fault: str, reason: str, arguments: str) -> None:
    response = play(fault, "what is 17 * 23", tools=[CALCULATOR])
    parts = [part for delta in deltas(response) for part in delta.get("tool_calls") or ()]
    assert "".join(part["function"]["arguments"] or "" for part in parts) == arguments
    assert finish(play(fault, "what is 17 * 23", tools=[CALCULATOR])) == reason


@pytest.mark.parametrize(
    ("fault", "heads"),
    [
        ("no-index", [(None, "a"), (None, "b")]),
        ("no-index-split", [(None, "a"), (None, None), (None, "b"), (None, None)]),
        ("same-index", [(0, "a"), (0, "b")]),
        ("index-from-one", [(1, "a"), (2, "b")]),
        ("interleaved", [(0, "a"), (1, "b"), (0, None), (1, None)]),
    ],
)
def test_two_calls_are_mixed_up_in_the_way_they_say(fault: str, heads: list[tuple[int | None, str | None]]) -> None:
    parts = [
        part for delta in deltas(play(fault, TWO_TOOLS, tools=ALL_TOOLS)) for part in delta.get("tool_calls") or ()
    ]
    names = {"calculator": "a", "current_time": "b", None: None}
    assert [(part.get("index"), names[part["function"].get("name")]) for part in parts] == heads


def test_ids_are_missing_empty_or_the_same() -> None:
    def ids(fault: str) -> list[str | None]:
        parts = [
            part for delta in deltas(play(fault, TWO_TOOLS, tools=ALL_TOOLS)) for part in delta.get("tool_calls") or ()
        ]
        return [part.get("id") for part in parts if part["function"].get("name")]

    assert ids("no-id") == [None]
    assert ids("empty-id") == [""]
    assert ids("duplicate-ids") == ["call_same", "call_same"]


def test_faults_of_tools_end_when_results_have_come_back() -> None:
    called = reply("what time is it", tools=[CLOCK])
    round_one = with_results(called, "noon")
    assert "noon" in text(play("args-invalid", "what time is it", *round_one, tools=[CLOCK]))
    assert finish(play("tool-loop", "what time is it", *round_one, tools=[CLOCK])) == "tool_calls"


def test_a_fault_of_tools_needs_no_fitting_question() -> None:
    first = deltas(play("args-cut-length", user("hello"), assistant("hi"), "Tell me more.", tools=[CLOCK]))[1]
    assert first["tool_calls"][0]["function"]["name"] == "current_time"
    assert deltas(play("no-id", "hello"))[1]["tool_calls"][0]["function"]["name"] == "lookup"


@pytest.mark.parametrize("fault", ["eof", "crlf", "no-index", "error-only", "null-delta"])
def test_faults_of_streams_ask_for_a_stream(fault: str) -> None:
    with pytest.raises(ProviderError) as caught:
        play(fault, "hi", stream=False)
    assert caught.value.param == "stream"
