"""The answer of an attempt that was stopped midway can be saved, and the conversation goes on from it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from demo.validation import check_request
from schemas.agent_message import AgentMessage, joined_text
from schemas.stream_event import ToolNote
from workers.partial_answer import STOPPED_RESULT, PartialAnswer


def started(call_id: str, **args: Any) -> ToolNote:
    return ToolNote(id=call_id, name="clock", status="started", args=args)


def finished(call_id: str, result: str = "noon") -> ToolNote:
    return ToolNote(id=call_id, name="clock", status="finished", result=result)


def partial(*steps: str | ToolNote) -> PartialAnswer:
    answer = PartialAnswer()
    for step in steps:
        if isinstance(step, str):
            answer.add_text(step)
        else:
            answer.add_tool(step)
    return answer


def shape(answer: PartialAnswer) -> list[Any]:
    """The messages, each as its role and what matters of it."""
    return [
        (m.content, [call["id"] for call in m.tool_calls or ()])
        if m.role == "assistant"
        else (m.tool_call_id, m.content)
        for m in answer.messages()
    ]


def openai(message: AgentMessage) -> dict[str, Any]:
    """The message as a provider is sent it."""
    if message.role == "tool":
        return {"role": "tool", "content": message.content, "tool_call_id": message.tool_call_id}
    calls = [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": json.dumps(c["args"])}}
        for c in message.tool_calls or ()
    ]
    return {"role": "assistant", "content": message.content, **({"tool_calls": calls} if calls else {})}


def test_nothing_shown_is_no_message() -> None:
    assert PartialAnswer().messages() == []


def test_text_alone_is_one_message() -> None:
    assert shape(partial("Hel", "lo")) == [("Hello", [])]


def test_a_whole_round_is_kept_with_its_result_and_what_follows_is_the_next_message() -> None:
    answer = partial("Let me look. ", started("a", zone="utc"), finished("a"), "It is noon.")
    assert shape(answer) == [("Let me look. ", ["a"]), ("a", "noon"), ("It is noon.", [])]
    assert answer.messages()[0].tool_calls == [{"id": "a", "name": "clock", "args": {"zone": "utc"}}]


def test_a_call_that_was_stopped_gets_a_result_that_says_so() -> None:
    answer = partial("Let me look.", started("a"), started("b"), finished("b"))
    assert shape(answer) == [("Let me look.", ["a", "b"]), ("a", STOPPED_RESULT), ("b", "noon")]


def test_a_call_right_after_a_finished_round_belongs_to_the_next_message() -> None:
    answer = partial(started("a"), finished("a"), started("b"))
    assert shape(answer) == [("", ["a"]), ("a", "noon"), ("", ["b"]), ("b", STOPPED_RESULT)]


def test_an_id_that_comes_again_in_a_later_round_is_a_call_of_its_own() -> None:
    answer = partial(started("a"), finished("a", "one"), started("a"), finished("a", "two"))
    assert shape(answer) == [("", ["a"]), ("a", "one"), ("", ["a"]), ("a", "two")]


def test_a_result_that_comes_after_later_text_is_still_the_result_of_its_call() -> None:
    answer = partial(started("a"), started("b"), finished("a"), "meanwhile", finished("b", "late"))
    assert shape(answer) == [("", ["a", "b"]), ("a", "noon"), ("b", "late"), ("meanwhile", [])]


def test_a_result_without_a_call_is_left_out() -> None:
    assert shape(partial("text", finished("x"))) == [("text", [])]


calls = st.sampled_from("abc")
steps = st.lists(
    st.one_of(st.text(max_size=3), st.builds(started, calls), st.builds(finished, calls, st.text(max_size=3)))
)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_whatever_was_shown_the_saved_text_is_it_and_a_strict_provider_takes_the_conversation(
    shown: list[str | ToolNote],
) -> None:
    answer = partial(*shown)
    text = "".join(step for step in shown if isinstance(step, str))
    messages = answer.messages()
    assert answer.text == joined_text(messages) == text
    assert answer.tools == [step for step in shown if not isinstance(step, str)]
    if messages:
        history = [{"role": "user", "content": "hi"}, *map(openai, messages), {"role": "user", "content": "go on"}]
        check_request({"model": "demo-strict", "messages": history})


def test_kept_rounds_stand_before_what_is_shown() -> None:
    kept = partial("a", started("1"), finished("1")).messages()
    answer = PartialAnswer()
    answer.carry(kept)
    assert (answer.text, answer.messages()) == ("a", kept)
    assert answer.tools == [started("1"), {**finished("1"), "is_error": False}]
    answer.add_text("b")
    answer.add_tool(started("2"))
    assert answer.text == "ab"
    assert answer.messages() == [*kept, *partial("b", started("2")).messages()]
