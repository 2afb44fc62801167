"""A chat completion's stream, read without the client library's objects for every chunk."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx2
import openai
import orjson

from graph.sse import ServerEvent, SseParser
from schemas.errors import AgentInvocationError

#: Seconds to wait for the end of the body after [DONE], without which the connection cannot be used again.
DRAIN_S = 0.25
#: Seconds to wait after a finish_reason for what may follow it: more text, the usage, [DONE].
AFTER_FINISH_S = 2.0

_DONE = b"[DONE]"


async def read_chunks(response: httpx2.Response, silence_s: float | None) -> AsyncGenerator[dict[str, Any]]:
    """The chunks of a chat completion's stream as parsed JSON, until [DONE].

    Raises AgentInvocationError for a stream with no chunk at all, or with neither [DONE] nor a finish_reason at its
    end; openai.APIError for an error that the server reports inside it; httpx2.TimeoutException if nothing but
    comments comes for `silence_s` seconds; ValueError for what is not JSON.
    """
    await _check_is_stream(response)
    clock = asyncio.get_running_loop().time
    parser = SseParser()
    heard = finished = False
    last_event = clock()
    body = response.aiter_bytes()
    while (piece := await _next_piece(body, last_event + AFTER_FINISH_S if finished else None)) is not None:
        events = parser.feed(piece)
        if events:
            last_event = clock()
        elif silence_s is not None and not finished and clock() - last_event > silence_s:
            raise httpx2.ReadTimeout("nothing but comments", request=response.request)
        for event in events:
            if event.data.startswith(_DONE):
                _check_heard(heard)
                await _drain(body)
                return
            chunk = _parse(event, response)
            heard = True
            finished = finished or _is_last(chunk)
            yield chunk
    for event in parser.end():
        if event.data.startswith(_DONE):
            finished = True
        elif (chunk_or_half := _parse_end(event, response)) is not None:
            heard = True
            finished = finished or _is_last(chunk_or_half)
            yield chunk_or_half
    _check_heard(heard)
    if not finished:
        raise AgentInvocationError("the model's answer was cut off", code="truncated")


async def _next_piece(body: AsyncIterator[bytes], until: float | None) -> bytes | None:
    """The next piece of the body, None at its end; with `until`, a time of the loop, however it ends."""
    if until is None:
        return await anext(body, None)
    with contextlib.suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout_at(until):
            return await anext(body, None)
    return None


def _parse(event: ServerEvent, response: httpx2.Response) -> dict[str, Any]:
    try:
        chunk = orjson.loads(event.data)
    except orjson.JSONDecodeError:
        chunk = json.loads(event.data)  # takes half of a surrogate pair, as it comes when a character is torn in two
    if not isinstance(chunk, dict):
        raise ValueError("a chunk that is not an object")  # noqa: TRY004 - what came is wrong, not a type of ours
    if event.name == b"error" or chunk.get("error"):
        raise _reported_error(chunk.get("error") or chunk, response)
    return chunk


def _parse_end(event: ServerEvent, response: httpx2.Response) -> dict[str, Any] | None:
    """The last event of a stream that ended without a blank line; None if it was cut in half."""
    try:
        return _parse(event, response)
    except ValueError:
        return None


def _reported_error(body: object, response: httpx2.Response) -> openai.APIError:
    message = body.get("message") if isinstance(body, dict) else body
    return openai.APIError(str(message or "no message"), request=response.request, body=body)


def _is_last(chunk: dict[str, Any]) -> bool:
    choices = chunk.get("choices")
    return bool(choices and isinstance(choices[0], dict) and choices[0].get("finish_reason"))


def _check_heard(heard: bool) -> None:
    if not heard:
        raise AgentInvocationError("the model's server answered with nothing", code="empty_stream")


async def _check_is_stream(response: httpx2.Response) -> None:
    """Some servers report an error, or answer in one piece, with status 200 and as plain JSON."""
    if not response.headers.get("content-type", "").startswith("application/json"):
        return
    body = json.loads(await response.aread() or b"null")
    if isinstance(body, dict) and body.get("error"):
        raise _reported_error(body["error"], response)
    raise ValueError("a JSON document in place of a stream")


async def _drain(body: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(DRAIN_S):
            async for _ in body:
                pass
