"""A gateway that serves given logs over real sockets and breaks connections where a test wants them broken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self
from urllib.parse import urlsplit

from schemas.fold import BEFORE_ALL
from schemas.job_event import TERMINAL_KINDS, EventId

Log = Sequence[tuple[EventId, Mapping[str, Any]]]


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """An answer that is no event stream."""

    status: int = 200
    body: Any = None
    content_type: str = "application/json"


#: The connection is cut after so many bytes of the answer; None: never.
Cut = Callable[[], int | None]


@dataclass
class FakeGateway:
    """Answers requests by `replies`, keyed by method and path, and requests for events by `logs`, keyed by job.

    A reply may be a function of the request; None breaks the connection. `cut` says for each event stream when to
    break it off, `random` how its bytes are spread over packets. `requests` is what came in.
    """

    replies: dict[tuple[str, str], Reply | Callable[[Request], Reply | None]] = field(default_factory=dict)
    logs: dict[str, Log] = field(default_factory=dict)
    cut: Cut = lambda: None
    random: Random = field(default_factory=Random)
    requests: list[Request] = field(default_factory=list)
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            request = await _read_request(reader)
            self.requests.append(request)
            if request.path.endswith("/events") and request.method == "GET":
                await self._send_events(request, writer)
            else:
                await self._send_reply(request, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def _send_reply(self, request: Request, writer: asyncio.StreamWriter) -> None:
        reply = self.replies.get((request.method, request.path), Reply(404, {"detail": "there is no such thing"}))
        if callable(reply):
            given = reply(request)
            if given is None:
                writer.transport.abort()
                return
            reply = given
        body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        if reply.status == 204:
            body = b""
        writer.write(_head(reply.status, reply.content_type, f"content-length: {len(body)}") + body)
        await writer.drain()

    async def _send_events(self, request: Request, writer: asyncio.StreamWriter) -> None:
        log = self.logs.get(request.path.split("/")[3])
        if log is None:
            await self._send_reply(request, writer)
            return
        last = request.headers.get("last-event-id")
        cursor = EventId.parse(last) if last else BEFORE_ALL
        if log[-1][1]["kind"] in TERMINAL_KINDS and cursor >= log[-1][0]:
            writer.write(_head(204, "text/plain", "content-length: 0"))
            return
        frames = b": following\n\n" + b"".join(_frame(*entry) for entry in log if entry[0] > cursor)
        stream = _head(200, "text/event-stream", "transfer-encoding: chunked")
        for piece in self._pieces(frames):
            stream += b"%x\r\n%b\r\n" % (len(piece), piece)
        budget = self.cut()
        for piece in self._pieces((stream + b"0\r\n\r\n")[:budget]):
            writer.write(piece)
            await writer.drain()
        if budget is not None and self.random.random() < 0.5:
            writer.transport.abort()

    def _pieces(self, data: bytes) -> list[bytes]:
        pieces = []
        while data:
            size = self.random.choice((1, 2, 7, 50, 1000))
            pieces.append(data[:size])
            data = data[size:]
        return pieces


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *fields = head.strip().split("\r\n")
    method, target, _ = line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in fields)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body)


def _head(status: int, content_type: str, *fields: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Words", f"content-type: {content_type}", "connection: close", *fields, "", ""]
    return "\r\n".join(lines).encode()


def _frame(event_id: EventId, event: Mapping[str, Any]) -> bytes:
    return f"id: {event_id}\nevent: {event['kind']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
