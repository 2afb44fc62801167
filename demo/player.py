"""Plays a `Response` on an ASGI connection, at its pace, until it ends or the client leaves."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeAlias

from demo.journal import State
from demo.response import EVENTS, Action, Response, Stop

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

#: Closing a socket that lingers for no time at all resets the connection.
_NO_LINGER = struct.pack("ii", 1, 0)


async def play(response: Response, receive: Receive, send: Send, transport: asyncio.Transport) -> State:
    """Play a response to its end. Returns how it ended: `done`, `gone` (the client left) or `broken`.

    `transport` is the connection's, for responses that break it.
    """
    start = _start(response)
    if isinstance(response.body, bytes):
        await send(start)
        await send({"type": "http.response.body", "body": response.body})
        return "done"
    playing = asyncio.create_task(_perform(response.body, start, send, transport))
    leaving = asyncio.create_task(_client_left(receive))
    try:
        await asyncio.wait((playing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not playing.done():
            return "gone"
        state = playing.result()
        if state == "broken":
            await leaving  # uvicorn must know that the connection is lost before the application returns
        return state
    finally:
        playing.cancel()
        leaving.cancel()


def _start(response: Response) -> Message:
    headers: Mapping[str, str] = {"content-type": response.content_type, **response.headers}
    if response.content_type == EVENTS:
        headers = {"cache-control": "no-cache", **headers}
    elif isinstance(response.body, bytes):
        headers = {"content-length": str(len(response.body)), **headers}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": response.status, "headers": encoded}


async def _perform(actions: Iterator[Action], start: Message, send: Send, transport: asyncio.Transport) -> State:
    """Carry out the actions. Waits are counted from the last one's end, so that the work in between does not add up."""
    clock = asyncio.get_running_loop().time
    due = clock()
    started = False
    for action in actions:
        if type(action) is bytes:
            if not started:
                await send(start)
                started = True
            await send({"type": "http.response.body", "body": action, "more_body": True})
        elif isinstance(action, Stop):
            return await _break_off(action, transport)
        elif isinstance(action, float):
            due += action
            late = clock() - due
            if late > action:
                due += late  # far behind: no burst of what should have gone before
            await asyncio.sleep(max(-late, 0))
    if not started:
        await send(start)
    await send({"type": "http.response.body"})
    return "done"


async def _break_off(how: Stop, transport: asyncio.Transport) -> State:
    if how is Stop.HANG:
        await asyncio.Event().wait()
    elif how is Stop.RESET:
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        transport.abort()
    else:
        transport.close()
    return "broken"


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
