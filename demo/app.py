"""The demo model's routes, as one plain ASGI application.

| route | what it is |
|---|---|
| `GET /` | says what this is |
| `POST /v1/chat/completions` | streaming (server-sent events) or not |
| `GET /v1/models`, `GET /v1/models/{id}` | the models, `demo` first, each fault one of them |
| `GET /_demo/requests` | the last 50 requests, newest last; see below |
| `DELETE /_demo/requests` | forgets them |
| `GET /_demo/stats` | counters: requests, open, done, gone (the client left first), broken (the server broke off) |

`GET /_demo/requests` takes `limit`, `containing` (a text of the raw body), `state` (one of the four counted above), and
`wait`: the seconds to wait until `count` requests match (1 if not given).

It must be served by `demo.server`, whose protocol puts the connection's transport into the scope: some faults break it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

import orjson

from demo.controls import Controls, parse_controls
from demo.errors import ProviderError
from demo.journal import Journal, Record, State
from demo.models import ALL_MODELS, Model, Tally, find_model
from demo.player import Receive, Send, play
from demo.request import ChatRequest, parse_request
from demo.response import Response
from demo.scene import Pacing, Scene
from demo.script import reply_to
from demo.wire import Wire

_WELCOME = """\
This is the demo model: a scripted, OpenAI-compatible server that answers with no network and no API key.
It is not an AI. Its answers are canned, and the same question always gets the same answer.

POST /v1/chat/completions   with the model demo, demo-instant, demo-slow, demo-strict or demo-fault-<name>
GET  /v1/models             all models
GET  /_demo/requests        what was asked of it
"""

_MAX_BODY = 32 * 1024 * 1024
_MAX_WAIT = 30.0

Scope = dict[str, Any]


class DemoApp:
    """The application. `pacing` is that of the models whose name sets none."""

    def __init__(self, pacing: Pacing) -> None:
        self.journal = Journal()
        self._pacing = pacing
        self._tally = Tally()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport = scope["extensions"]["demo.transport"]
        if (scope["method"], scope["path"]) == ("POST", "/v1/chat/completions"):
            await self._complete(scope, receive, send, transport)
            return
        try:
            response = await self._look(scope["method"], scope["path"], dict(parse_qsl(scope["query_string"].decode())))
        except ProviderError as error:
            response = Response(error.body(), error.status)
        await play(response, receive, send, transport)

    async def _complete(self, scope: Scope, receive: Receive, send: Send, transport: asyncio.Transport) -> None:
        try:
            raw = await _read_body(receive)
        except ProviderError as error:
            await play(Response(error.body(), error.status), receive, send, transport)
            return
        authorization = any(name == b"authorization" for name, _ in scope["headers"])
        record = self.journal.begin(raw, time.time(), authorization=authorization)
        state: State = "broken"
        try:
            response = self._respond(record)
            record.status = response.status
            state = await play(response, receive, send, transport)
        finally:
            self.journal.end(record, state)

    def _respond(self, record: Record) -> Response:
        try:
            request = parse_request(record.raw)
            model = find_model(request.model)
            response = self._perform(request, model, record)
        except ProviderError as error:
            response = Response(error.body(), error.status)
        return replace(response, headers={"x-request-id": f"req_demo_{record.id}", **response.headers})

    def _perform(self, request: ChatRequest, model: Model, record: Record) -> Response:
        controls = parse_controls(request.last_user_text)
        answer_id = f"chatcmpl-demo-{record.id}"
        scene = Scene(
            request=request,
            controls=controls,
            reply=reply_to(request, controls),
            wire=Wire(answer_id, int(record.at), request.model, include_usage=request.include_usage),
            pacing=_pacing(model.pacing or self._pacing, controls),
        )
        fault = model.fault_for(request, self._tally)
        return fault.play(scene) if fault else scene.answer()

    async def _look(self, method: str, path: str, query: dict[str, str]) -> Response:
        """Answer everything but chat completions."""
        match method, path.removesuffix("/") or "/":
            case "GET" | "HEAD", "/":
                return Response(_WELCOME.encode(), content_type="text/plain; charset=utf-8")
            case "GET", "/v1/models":
                return _json({"object": "list", "data": [model.shown() for model in ALL_MODELS]})
            case "GET", known if known.startswith("/v1/models/"):
                return _json(find_model(known.removeprefix("/v1/models/")).shown())
            case "GET", "/_demo/requests":
                return _json({"requests": await self._find_requests(query)})
            case "DELETE", "/_demo/requests":
                self.journal.clear()
                return Response(b"", 204)
            case "GET", "/_demo/stats":
                return _json(self.journal.stats())
            case _:
                raise ProviderError(f"The demo model has no {method} {path}; see GET /.", status=404, code="not_found")

    async def _find_requests(self, query: dict[str, str]) -> list[dict[str, Any]]:
        containing, state = query.get("containing", "").encode(), query.get("state", "")
        seconds = min(_number(query, "wait", 0.0), _MAX_WAIT)
        if seconds:
            count = int(_number(query, "count", 1))
            await self.journal.wait_for(seconds, containing=containing, state=state, count=count)
        found = self.journal.find(containing=containing, state=state, limit=int(_number(query, "limit", 50)))
        return [record.shown() for record in found]


def create_app(*, first_ms: float = 0.0, pace_ms: float = 30.0) -> DemoApp:
    """The demo model as an ASGI application.

    `first_ms` and `pace_ms` are the milliseconds before the first token and between tokens of the models `demo` and
    `demo-strict`; the other models have their own.
    """
    return DemoApp(Pacing(first_ms / 1000, pace_ms / 1000))


def _pacing(usual: Pacing, controls: Controls) -> Pacing:
    return Pacing(
        first=usual.first if controls.first is None else controls.first,
        pace=usual.pace if controls.pace is None else controls.pace,
    )


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value))


def _number(query: dict[str, str], name: str, default: float) -> float:
    try:
        value = float(query.get(name, default))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ProviderError(f"{name} must be a number of 0 or more", param=name)
    return value


async def _read_body(receive: Receive) -> bytes:
    """The whole body; of a client that has left, what had arrived."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > _MAX_BODY:
            raise ProviderError(f"the body is larger than {_MAX_BODY} bytes", status=413, code="request_too_large")
        if message["type"] == "http.disconnect" or not message["more_body"]:
            return bytes(body)
