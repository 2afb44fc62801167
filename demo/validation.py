"""What a strict provider refuses, checked before anything is answered.

Every model refuses what OpenAI refuses, and also empty lists and empty assistant turns, which many compatible servers
refuse. `demo-strict` refuses in addition what only the strictest do: unknown fields, a system message that is not the
first, turns that do not alternate, blank user texts, and recorded tool calls whose arguments are not a JSON object.
A 400 for a history that chatmill built is a defect of chatmill.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import orjson

from demo.errors import ProviderError

STRICT_MODEL = "demo-strict"

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PART_TYPES = ("text", "image_url", "input_audio", "file")
_OUTPUT_TYPES = ("text", "json_object", "json_schema")
_MESSAGE_FIELDS = {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "audio"}
# fmt: off
_REQUEST_FIELDS = {
    "audio", "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "messages",
    "metadata", "modalities", "model", "n", "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key",
    "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream",
    "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity",
    "web_search_options",
}
# fmt: on


def check_request(body: Any) -> dict[str, Any]:
    """Return the body of a chat completion request if a strict provider would take it; raises ProviderError (400)."""
    if not isinstance(body, dict):
        _refuse("the body must be a JSON object")
    if not isinstance(body.get("model"), str) or not body["model"]:
        _refuse("a model is required", "model")
    _check_options(body)
    _check_tools(body)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        _refuse("at least one message is required", "messages")
    _check_messages(messages)
    if body["model"] == STRICT_MODEL:
        _check_strictly(body, messages)
    return body


def _refuse(message: str, param: str | None = None, code: str | None = None) -> NoReturn:
    raise ProviderError(f"{param}: {message}" if param else message, param=param, code=code)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _check_output(wanted: Any) -> None:
    if wanted is None:
        return
    if not isinstance(wanted, dict) or wanted.get("type") not in _OUTPUT_TYPES:
        _refuse(f"must be an object of type {' or '.join(_OUTPUT_TYPES)}", "response_format")
    if wanted["type"] == "json_schema":
        schema = wanted.get("json_schema")
        if not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict) or not schema.get("name"):
            _refuse("must be an object with name and schema", "response_format.json_schema")


def _check_options(body: dict[str, Any]) -> None:
    for name in ("stream", "parallel_tool_calls"):
        if not isinstance(body.get(name), bool | None):
            _refuse("must be true or false", name)
    for name, low, high in (("temperature", 0, 2), ("top_p", 0, 1)):
        value = body.get(name)
        if value is not None and not (_is_number(value) and low <= value <= high):
            _refuse(f"must be a number from {low} to {high}", name)
    limits = [name for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None]
    if len(limits) == 2:
        _refuse("cannot be combined with max_completion_tokens", "max_tokens")
    for name in limits:
        if type(body[name]) is not int or body[name] < 1:
            _refuse("must be a whole number above 0", name)
    if body.get("n") not in (None, 1):
        _refuse("the demo model makes one choice", "n")
    if body.get("stream_options") is not None:
        if not body.get("stream"):
            _refuse("is allowed only with stream: true", "stream_options")
        if not isinstance(body["stream_options"], dict):
            _refuse("must be an object", "stream_options")
    stop = body.get("stop")
    if not isinstance(stop, str | None) and not _is_list_of_strings(stop):
        _refuse("must be a string or a list of strings", "stop")
    _check_output(body.get("response_format"))
    if not isinstance(body.get("user"), str | None):
        _refuse("must be a string", "user")


def _check_tools(body: dict[str, Any]) -> None:
    tools = body.get("tools")
    if tools is None:
        for name in ("tool_choice", "parallel_tool_calls"):
            if body.get(name) is not None:
                _refuse("is allowed only with tools", name)
        return
    if not isinstance(tools, list) or not tools:
        _refuse("must be a list that is not empty, or be left out", "tools", "empty_array")
    names: set[str] = set()
    for index, tool in enumerate(tools):
        names.add(_checked_tool_name(tool, names, f"tools[{index}]"))
    _check_tool_choice(body.get("tool_choice"), names)


def _checked_tool_name(tool: Any, known: set[str], where: str) -> str:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict):
        _refuse("must be an object of type function", where)
    name = function.get("name")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        _refuse("must be 1 to 64 letters, digits, _ or -", f"{where}.function.name")
    if name in known:
        _refuse(f"{name} is offered twice", f"{where}.function.name")
    parameters = function.get("parameters", {"type": "object"})
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        _refuse("must be a schema of type object", f"{where}.function.parameters")
    if not isinstance(parameters.get("properties", {}), dict):
        _refuse("must be an object", f"{where}.function.parameters.properties")
    return name


def _check_tool_choice(choice: Any, names: set[str]) -> None:
    if choice in (None, "none", "auto", "required"):
        return
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if not isinstance(function, dict) or function.get("name") not in names:
        _refuse("must be none, auto, required or one of the offered functions", "tool_choice")


def _check_messages(messages: list[Any]) -> None:
    waiting: list[str] = []  # ids of calls whose results are still to come
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if waiting and role != "tool":
            _refuse(f"the tool calls {', '.join(waiting)} before it have no result", where)
        if role in ("system", "developer", "user"):
            _check_content(message.get("content"), f"{where}.content")
        elif role == "assistant":
            waiting = _checked_calls(message, where)
        elif role == "tool":
            _check_content(message.get("content"), f"{where}.content", ("text",))
            if message.get("tool_call_id") not in waiting:
                _refuse("a tool message must answer an open tool call of the assistant turn before it", where)
            waiting.remove(message["tool_call_id"])
        else:
            _refuse("must be an object with the role system, developer, user, assistant or tool", where)
    if waiting:
        _refuse(f"the tool calls {', '.join(waiting)} have no result", "messages")


def _check_content(content: Any, where: str, parts: tuple[str, ...] = _PART_TYPES) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list) or not content:
        _refuse("must be a string or a list of parts that is not empty", where)
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in parts:
            _refuse(f"must be a part of type {' or '.join(parts)}", f"{where}[{index}]")
        if kind == "text" and not isinstance(part.get("text"), str):
            _refuse("a part of type text needs a text", f"{where}[{index}]")


def _checked_calls(message: dict[str, Any], where: str) -> list[str]:
    content, calls = message.get("content"), message.get("tool_calls")
    if content is not None and content != "":
        _check_content(content, f"{where}.content", ("text", "refusal"))
    if calls is None:
        if not content and not message.get("refusal"):
            _refuse("an assistant turn needs content or tool calls", where)
        return []
    if not isinstance(calls, list) or not calls:
        _refuse("must be a list that is not empty, or be left out", f"{where}.tool_calls", "empty_array")
    ids: list[str] = []
    for index, call in enumerate(calls):
        place = f"{where}.tool_calls[{index}]"
        function = call.get("function") if isinstance(call, dict) and call.get("type") == "function" else None
        if not isinstance(function, dict):
            _refuse("must be an object of type function", place)
        if not isinstance(function.get("name"), str) or not function["name"]:
            _refuse("a name is required", f"{place}.function.name")
        if not isinstance(function.get("arguments"), str):
            _refuse("must be JSON in a string", f"{place}.function.arguments")
        if not isinstance(call.get("id"), str) or not call["id"] or call["id"] in ids:
            _refuse("an id is required that no other call of the turn has", f"{place}.id")
        ids.append(call["id"])
    return ids


def _check_strictly(body: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    for name in sorted(body.keys() - _REQUEST_FIELDS):
        _refuse("unknown field", name)
    turns = messages[1:] if messages[0]["role"] in ("system", "developer") else messages
    before = "start"
    for index, message in enumerate(turns, start=len(messages) - len(turns)):
        where, role = f"messages[{index}]", message["role"]
        for name in sorted(message.keys() - _MESSAGE_FIELDS):
            _refuse("unknown field", f"{where}.{name}")
        if role in ("system", "developer"):
            _refuse("a system message is allowed only at the start", where)
        if (role == before != "tool") or (before == "start" and role != "user"):
            _refuse(f"{role} cannot follow {before}", where)
        if role == "user" and isinstance(message["content"], str) and not message["content"].strip():
            _refuse("must not be blank", f"{where}.content")
        for call in message.get("tool_calls") or ():
            _check_arguments(call["function"]["arguments"], where)
        before = role
    if before not in ("user", "tool"):
        _refuse("the last message must be of role user or tool", "messages")


def _check_arguments(arguments: str, where: str) -> None:
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        parsed = None
    if not isinstance(parsed, dict):
        _refuse("the arguments of a tool call must be a JSON object", where)
