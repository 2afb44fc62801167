"""Requests and scenes, made in one line for the tests of this folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import orjson

from demo.controls import parse_controls
from demo.models import Tally, find_model
from demo.reply import Reply
from demo.request import ChatRequest, parse_request
from demo.response import Action, Response
from demo.scene import Pacing, Scene
from demo.script import reply_to
from demo.wire import Wire


def tool(name: str, *required: str, **properties: Any) -> dict[str, Any]:
    """An offered function; a property is given by its type or its schema."""
    schemas = {key: {"type": value} if isinstance(value, str) else value for key, value in properties.items()}
    parameters = {"type": "object", "properties": schemas, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


CALCULATOR = tool("calculator", "expression", expression="string")
CLOCK = tool("current_time", timezone="string")
CONVERTER = tool("convert_units", "value", "from_unit", "to_unit", value="number", from_unit="string", to_unit="string")
SEARCH = tool("search_text", "query", query="string")
ALL_TOOLS = [CALCULATOR, CLOCK, CONVERTER, SEARCH]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def with_results(reply: Reply, *results: str) -> list[dict[str, Any]]:
    """The messages of a tool round: the reply's calls, and a result for each."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in reply.calls
    ]
    answers = [
        {"role": "tool", "tool_call_id": call.id, "content": result}
        for call, result in zip(reply.calls, results, strict=True)
    ]
    return [{"role": "assistant", "content": reply.text or None, "tool_calls": calls}, *answers]


def request(*messages: dict[str, Any] | str, model: str = "demo", **fields: Any) -> ChatRequest:
    """A checked request; a string is a user message."""
    spelled = [user(message) if isinstance(message, str) else message for message in messages]
    return parse_request(orjson.dumps({"model": model, "messages": spelled, **fields}))


def reply(*messages: dict[str, Any] | str, **fields: Any) -> Reply:
    """What the script answers."""
    asked = request(*messages, **fields)
    return reply_to(asked, parse_controls(asked.last_user_text))


def scene(*messages: dict[str, Any] | str, model: str = "demo", stream: bool = True, **fields: Any) -> Scene:
    asked = request(*messages, model=model, stream=stream, **fields)
    controls = parse_controls(asked.last_user_text)
    wire = Wire("chatcmpl-1", 0, model, include_usage=asked.include_usage)
    pacing = Pacing(controls.first or 0.0, controls.pace or 0.0)
    return Scene(asked, controls, reply_to(asked, controls), wire, pacing)


def play(fault: str, *messages: dict[str, Any] | str, stream: bool = True, **fields: Any) -> Response:
    """The response of a model that plays a fault."""
    acted = scene(*messages, model=f"demo-fault-{fault}", stream=stream, **fields)
    found = find_model(acted.request.model).fault_for(acted.request, Tally())
    assert found is not None
    return found.play(acted)


def actions(response: Response) -> list[Action]:
    """What is sent and when; of a body that never ends, the beginning."""
    return [response.body] if isinstance(response.body, bytes) else list(itertools.islice(response.body, 50_000))


def sent(response: Response) -> bytes:
    """All bytes of a response that ends."""
    return b"".join(action for action in actions(response) if isinstance(action, bytes))


def chunks(response: Response) -> Iterator[dict[str, Any]]:
    """The chunks of a well-framed stream, `[DONE]` left out."""
    for event in sent(response).split(b"\n\n"):
        payload = event.removeprefix(b"data: ")
        if payload and payload != b"[DONE]":
            yield orjson.loads(payload)


def deltas(response: Response) -> list[dict[str, Any]]:
    return [choice["delta"] for chunk in chunks(response) for choice in chunk["choices"]]


def text(response: Response) -> str:
    return "".join(delta.get("content") or "" for delta in deltas(response))


def finish(response: Response) -> str | None:
    """The last finish reason."""
    reasons = [choice["finish_reason"] for chunk in chunks(response) for choice in chunk["choices"]]
    return next((reason for reason in reversed(reasons) if reason), None)
