"""Messages in three shapes: chatmill's own, LangChain's, and the payload of OpenAI's chat completions.

To LangChain and back is the identity, for chatmill's messages and for payloads alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from schemas.agent_message import AgentMessage, ChatMessage, OpenAIMessage, ToolCall
from schemas.border_text import parse_json
from schemas.errors import MalformedRequest


def to_langchain(message: ChatMessage) -> AnyMessage:
    """One of our messages as LangChain's."""
    match message.role:
        case "system":
            return SystemMessage(message.content)
        case "user":
            return HumanMessage(message.content)
        case "assistant":
            calls = [{**call, "type": "tool_call"} for call in message.tool_calls or ()]
            return AIMessage(message.content, tool_calls=calls)
        case "tool":
            return ToolMessage(message.content, tool_call_id=message.tool_call_id or "")


def from_langchain(message: BaseMessage) -> ChatMessage:
    """One of LangChain's messages as ours; content parts other than text are left out."""
    if isinstance(message, AIMessage):
        calls = [ToolCall(id=call["id"] or "", name=call["name"], args=call["args"]) for call in message.tool_calls]
        return ChatMessage(role="assistant", content=text_of(message.content), tool_calls=calls or None)
    if isinstance(message, ToolMessage):
        return ChatMessage(role="tool", content=text_of(message.content), tool_call_id=message.tool_call_id)
    return ChatMessage(
        role="system" if isinstance(message, SystemMessage) else "user", content=text_of(message.content)
    )


def agent_messages(messages: Iterable[BaseMessage]) -> list[AgentMessage]:
    """The messages of an answer as ours."""
    return [AgentMessage.model_validate(from_langchain(message).to_json()) for message in messages]


def from_openai(payload: Mapping[str, Any]) -> AnyMessage:
    """A message of a chat completions payload as LangChain's.

    Raises pydantic's ValidationError for another shape, and ValueError if a call's arguments are not a JSON object.
    """
    message = OpenAIMessage.model_validate(payload)
    calls = [
        ToolCall(id=call.id, name=call.function.name, args=parse_arguments(call.function.arguments))
        for call in message.tool_calls or ()
    ]
    role = "system" if message.role == "developer" else message.role
    return to_langchain(
        ChatMessage(role=role, content=message.text, tool_calls=calls or None, tool_call_id=message.tool_call_id)
    )


def to_openai(message: BaseMessage) -> dict[str, Any]:
    """One of LangChain's messages as it is sent to a provider.

    Servers differ in what they refuse: a null content, an empty one, an empty list of calls. None of them is sent.
    """
    neutral = from_langchain(message)
    payload: dict[str, Any] = {"role": neutral.role}
    if neutral.content or not neutral.tool_calls:
        payload["content"] = neutral.content
    if neutral.tool_calls:
        payload["tool_calls"] = [_openai_call(call) for call in neutral.tool_calls]
    if neutral.role == "tool":
        payload["tool_call_id"] = neutral.tool_call_id
    return payload


def text_of(content: str | list[Any]) -> str:
    """The text of a LangChain content: a string, or a list of strings and parts of which some are text."""
    if isinstance(content, str):
        return content
    return "".join(
        part if isinstance(part, str) else str(part.get("text") or "")
        for part in content
        if isinstance(part, str) or part.get("type") == "text"
    )


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments of a tool call, parsed strictly; no text at all stands for no arguments.

    Raises ValueError with a reason that can be told to the model.
    """
    if not text.strip():
        return {}
    try:
        arguments = parse_json(text)
    except MalformedRequest as error:
        raise ValueError(error.reason.replace("the body is", "the arguments are", 1)) from None
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not a JSON object")  # noqa: TRY004 - the text is wrong, not a type of ours
    return arguments


def _openai_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": orjson.dumps(call["args"]).decode()}
    return {"id": call["id"], "type": "function", "function": function}
