"""One chunk of a chat completion, from parsed JSON to LangChain's message."""

from __future__ import annotations

from typing import Any

import orjson
from langchain_core.messages import AIMessageChunk

#: A chunk with nothing else in its delta is nine in ten of them.
_PLAIN_DELTA = frozenset({"content", "role"})


def plain_message(data: dict[str, Any]) -> AIMessageChunk | None:
    """A chunk of nothing but text, without the validation that text does not need; None for every other chunk."""
    choices = data.get("choices")
    if data.get("usage") or not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    choice = choices[0]
    delta = choice.get("delta")
    if choice.get("finish_reason") or choice.get("logprobs") or not isinstance(delta, dict):
        return None
    content = delta.get("content")
    if type(content) is not str or not delta.keys() <= _PLAIN_DELTA or delta.get("role") not in ("assistant", None):
        return None
    return AIMessageChunk.model_construct(
        content=content,
        additional_kwargs={},
        response_metadata={"model_provider": "openai"},
        type="AIMessageChunk",
        name=None,
        id=None,
        tool_calls=[],
        invalid_tool_calls=[],
        usage_metadata=None,
        tool_call_chunks=[],
        chunk_position=None,
    )


def usual_form(data: dict[str, Any]) -> dict[str, Any]:
    """The chunk in the one form that ChatOpenAI reads: nothing it counts on is missing, of another type or null."""
    choices = data.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    usage = data.get("usage")
    return {
        **data,
        "choices": [_usual_choice(first)] if isinstance(first, dict) else [],
        "usage": usage if isinstance(usage, dict) else None,
    }


def _usual_choice(choice: dict[str, Any]) -> dict[str, Any]:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        delta = {}
    calls = delta.get("tool_calls")
    usual = {**delta, "role": "assistant", "function_call": None}
    usual["tool_calls"] = [_usual_call(call) for call in calls if isinstance(call, dict)] if calls else None
    if not isinstance(usual.get("content"), str | list):
        usual["content"] = None
    return {**choice, "delta": usual}


def _usual_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        function = {}
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, str):  # an object in place of its JSON
        arguments = orjson.dumps(arguments).decode()
    index = call.get("index")
    return {
        "id": call.get("id") or None,
        "index": index if isinstance(index, int) else None,
        "function": {"name": function.get("name"), "arguments": arguments},
    }
