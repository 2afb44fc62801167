"""One checked chat completion request, with what the script and the faults ask about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

from demo.errors import ProviderError
from demo.validation import check_request


@dataclass(frozen=True)
class Tool:
    """A function the caller offers, and the JSON schema of its parameters."""

    name: str
    parameters: dict[str, Any]

    @property
    def properties(self) -> dict[str, Any]:
        """The schema of each parameter."""
        return self.parameters.get("properties") or {}

    @property
    def required(self) -> list[str]:
        return self.parameters.get("required") or []


@dataclass(frozen=True)
class ChatRequest:
    """The body of a request that passed validation."""

    body: dict[str, Any]

    @property
    def model(self) -> str:
        return str(self.body["model"])

    @cached_property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body["messages"])

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def include_usage(self) -> bool:
        return bool((self.body.get("stream_options") or {}).get("include_usage"))

    @property
    def max_tokens(self) -> int | None:
        return self.body.get("max_completion_tokens") or self.body.get("max_tokens")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop sequences asked for."""
        stop = self.body.get("stop") or ()
        return (stop,) if isinstance(stop, str) else tuple(str(text) for text in stop if text)

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        functions = (tool["function"] for tool in self.body.get("tools") or ())
        return tuple(Tool(function["name"], function.get("parameters") or {"type": "object"}) for function in functions)

    @property
    def forced_tool(self) -> Tool | None:
        """The tool that tool_choice demands, if it demands one."""
        choice = self.body.get("tool_choice")
        if choice == "required":
            return self.tools[0]
        if isinstance(choice, dict):
            return next(tool for tool in self.tools if tool.name == choice["function"]["name"])
        return None

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """The schema of the JSON that response_format demands; None if it demands none."""
        wanted: dict[str, Any] = self.body.get("response_format") or {"type": "text"}
        if wanted["type"] == "text":
            return None
        schema = wanted["json_schema"]["schema"] if wanted["type"] == "json_schema" else {"type": "object"}
        return dict(schema)

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.body.get("tool_choice") != "none"

    @property
    def one_call_only(self) -> bool:
        return self.body.get("parallel_tool_calls") is False

    @cached_property
    def user_texts(self) -> list[str]:
        """The texts of all user messages, oldest first."""
        return [text_of(message) for message in self.messages if message["role"] == "user"]

    @property
    def last_user_text(self) -> str:
        return self.user_texts[-1] if self.user_texts else ""

    @cached_property
    def turn(self) -> list[dict[str, Any]]:
        """The messages after the last user message: what was done so far to answer it."""
        for index in range(len(self.messages), 0, -1):
            if self.messages[index - 1]["role"] == "user":
                return self.messages[index:]
        return []

    @property
    def rounds(self) -> int:
        """How many times tools were called already to answer the last user message."""
        return sum(1 for message in self.turn if message.get("tool_calls"))

    @cached_property
    def results(self) -> list[tuple[dict[str, Any], str]]:
        """The calls of this turn with their results: `({"name", "arguments"}, text)`, in order."""
        calls: dict[str, dict[str, Any]] = {}
        pairs = []
        for message in self.turn:
            calls.update({call["id"]: call["function"] for call in message.get("tool_calls") or ()})
            if message["role"] == "tool":
                pairs.append((calls[message["tool_call_id"]], text_of(message)))
        return pairs

    @property
    def prompt_tokens(self) -> int:
        """The words of all messages, with the names and arguments of calls; one more for each message's role."""
        return sum(1 + len(text_of(message).split()) + _call_words(message) for message in self.messages)


def parse_request(raw: bytes) -> ChatRequest:
    """Read and check a request's body; raises ProviderError (400)."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ProviderError(f"the body is not JSON: {error}") from error
    return ChatRequest(check_request(body))


def text_of(message: dict[str, Any]) -> str:
    """A message's text; of a list of parts, the text parts joined."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def _call_words(message: dict[str, Any]) -> int:
    functions = (call["function"] for call in message.get("tool_calls") or ())
    return sum(1 + len(function["arguments"].split()) for function in functions)
