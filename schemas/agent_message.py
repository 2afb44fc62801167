"""Messages of a conversation, as handlers and storage speak of them: no framework's types."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic refuses the one in typing before Python 3.12

MessageRole = Literal["system", "user", "assistant", "tool"]


class ToolCall(TypedDict):
    """One call the model asked for. `args` is the parsed JSON object."""

    id: str
    name: str
    args: dict[str, Any]


class Usage(TypedDict):
    """Tokens as the provider counted them, summed over the model calls of one answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


def add_usage(total: Usage | None, usage: Usage | None) -> Usage | None:
    """The sum of two usages; None stands for "not known" and adds nothing."""
    if total is None or usage is None:
        return usage or total
    return Usage(
        prompt_tokens=total["prompt_tokens"] + usage["prompt_tokens"],
        completion_tokens=total["completion_tokens"] + usage["completion_tokens"],
        total_tokens=total["total_tokens"] + usage["total_tokens"],
    )


class ChatMessage(BaseModel, frozen=True):
    """One message of a conversation's history."""

    model_config = ConfigDict(extra="ignore")

    role: MessageRole
    content: str = ""
    #: Only on `assistant`: the calls it asked for, or None.
    tool_calls: list[ToolCall] | None = None
    #: Only on `tool`: the id of the call it answers.
    tool_call_id: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The message as plain JSON, without the fields that are not set."""
        return self.model_dump(exclude_none=True)


class AgentMessage(ChatMessage, frozen=True):
    """One message of an agent's answer: what it said or asked for, or what a tool returned."""

    role: Literal["assistant", "tool"]

    @classmethod
    def assistant(cls, content: str, tool_calls: list[ToolCall] | None = None) -> Self:
        return cls(role="assistant", content=content, tool_calls=tool_calls or None)


def joined_text(messages: list[AgentMessage]) -> str:
    """What a reader saw: the contents of the assistant messages, joined with nothing between them."""
    return "".join(message.content for message in messages if message.role == "assistant")


class OpenAIToolFunction(BaseModel):
    """The function of an OpenAI tool call; `arguments` is a JSON string."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1, max_length=128)
    arguments: str = "{}"


class OpenAIToolCall(BaseModel):
    """A tool call in an OpenAI-shaped assistant message."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: str = Field(min_length=1, max_length=256)
    type: Literal["function"] = "function"
    function: OpenAIToolFunction


class OpenAITextPart(BaseModel):
    """A text part of an OpenAI-shaped content array."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    type: Literal["text"]
    text: str


class OpenAIMessage(BaseModel):
    """A message as OpenAI's chat completions take it (text parts only)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[OpenAITextPart] | None = None
    name: str | None = Field(default=None, max_length=128)
    tool_calls: list[OpenAIToolCall] | None = None
    tool_call_id: str | None = Field(default=None, max_length=256)

    @property
    def text(self) -> str:
        """The content as one string; parts are joined with nothing between them."""
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)
