"""What a model is sent can be sent, begins with its instructions, and fits."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from handlers.history import OPEN_CALL_RESULT, estimated_tokens, read_conversation, sendable
from handlers.prompts import DEFAULT_SYSTEM_PROMPT, with_instructions
from schemas.agent_message import ChatMessage, ToolCall
from schemas.agent_session import AgentSession
from schemas.chat_job import Parameters
from schemas.errors import AgentInvocationError
from schemas.models import ModelTarget

CALL = ToolCall(id="a", name="f", args={})


def system(text: str) -> ChatMessage:
    return ChatMessage(role="system", content=text)


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def assistant(text: str, *calls: ToolCall) -> ChatMessage:
    return ChatMessage(role="assistant", content=text, tool_calls=list(calls) or None)


def result(text: str, call_id: str = "a") -> ChatMessage:
    return ChatMessage(role="tool", content=text, tool_call_id=call_id)


def session(window: int | None = None, history: tuple[ChatMessage, ...] = (), **fields: Any) -> AgentSession:
    target = ModelTarget(name="m", model="m", base_url=None, api_key=SecretStr("k"), context_window=window)

    async def read_history(reply_to: str | None = None) -> list[ChatMessage]:
        return [*history, *([user(f"up to {reply_to}")] if reply_to else [])]

    return AgentSession(session_id="s", model_target=target, read_history=read_history, **fields)


async def test_the_message_comes_last_and_the_prompt_first() -> None:
    conversation = await read_conversation(session(history=(user("a"), assistant("b"))), "c", None)

    assert conversation == [system(DEFAULT_SYSTEM_PROMPT), user("a"), assistant("b"), user("c")]


async def test_the_history_ends_where_the_answered_message_stands() -> None:
    conversation = await read_conversation(session(), "c", "some-id")

    assert conversation[1:] == [user("up to some-id"), user("c")]


@pytest.mark.parametrize(
    ("fields", "head", "expected"),
    [
        ({}, [], DEFAULT_SYSTEM_PROMPT),
        ({"system": "mine"}, [], "mine"),
        ({}, [system("theirs")], "theirs"),
        ({"system": "mine"}, [system("theirs"), system("more")], "mine\n\ntheirs\n\nmore"),
    ],
)
def test_the_default_prompt_is_used_only_if_the_caller_gave_none(
    fields: dict[str, Any], head: list[ChatMessage], expected: str
) -> None:
    assert with_instructions(session(**fields), [*head, user("a")]) == [system(expected), user("a")]


def test_a_system_message_in_the_middle_counts_as_the_callers() -> None:
    conversation = [user("a"), system("theirs"), user("b")]

    assert with_instructions(session(), conversation) == conversation


@pytest.mark.parametrize("head", [[], [system("theirs")]])
def test_a_language_adds_a_line(head: list[ChatMessage]) -> None:
    first, *rest = with_instructions(session(language="pt-BR"), [*head, user("a")])

    assert first.content.startswith(head[0].content if head else DEFAULT_SYSTEM_PROMPT)
    assert "pt-BR" in first.content
    assert rest == [user("a")]


def test_assistant_turns_that_say_nothing_are_left_out() -> None:
    assert sendable([user("a"), assistant(""), user("b")]) == [user("a"), user("b")]


def test_calls_without_a_result_get_one_before_the_next_turn() -> None:
    other = ToolCall(id="b", name="f", args={})
    history = [user("x"), assistant("", CALL, other), result("kept", "b"), user("next")]

    assert sendable(history) == [*history[:3], result(OPEN_CALL_RESULT), user("next")]
    assert sendable([assistant("", CALL)])[-1] == result(OPEN_CALL_RESULT)


def test_results_without_a_call_are_left_out() -> None:
    assert sendable([user("a"), result("orphan"), assistant("b")]) == [user("a"), assistant("b")]


def test_a_history_in_order_is_kept_as_it_is() -> None:
    history = [user("a"), assistant("t", CALL), result("r"), assistant("b"), user("c")]

    assert sendable(history) == history


async def test_a_conversation_beyond_the_window_is_refused_with_the_figures() -> None:
    with pytest.raises(AgentInvocationError) as caught:
        await read_conversation(session(window=1000), "word " * 10_000, None)

    assert (caught.value.code, caught.value.retryable) == ("too_long", False)
    assert "1000" in str(caught.value)
    assert "about 11" in str(caught.value)


async def test_what_the_answer_may_take_counts_too() -> None:
    just_fits = session(window=1000, parameters=Parameters(max_tokens=100))
    too_much = session(window=1000, parameters=Parameters(max_tokens=990))

    assert await read_conversation(just_fits, "hello", None)
    with pytest.raises(AgentInvocationError, match="990 are kept for the answer"):
        await read_conversation(too_much, "hello", None)


async def test_without_a_known_window_nothing_is_refused() -> None:
    assert await read_conversation(session(), "word " * 100_000, None)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("The quick brown fox jumps over the lazy dog. " * 10, 60, 120), ("日本語の文章です。" * 10, 45, 100), ("", 0, 0)],
)
def test_the_estimate_is_of_the_right_size(text: str, low: float, high: float) -> None:
    assert low <= estimated_tokens(text) <= high
