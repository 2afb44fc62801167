"""A stream is read to its end, and its end is recognised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest

import graph.fast_stream
from graph.fast_stream import read_chunks
from schemas.errors import AgentInvocationError

TEXT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"total_tokens":1}}\n\n'
DONE = b"data: [DONE]\n\n"


async def read(
    *pieces: bytes | Exception, silence_s: float | None = None, kind: str = "text/event-stream"
) -> list[dict[str, Any]]:
    """The chunks of a body in these pieces; an exception breaks it off, and after b"" it stays open, with comments."""

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            while not piece:
                await asyncio.sleep(0.01)
                yield b": still here\n\n"
            yield piece

    request = httpx2.Request("POST", "http://127.0.0.1/v1/chat/completions")
    response = httpx2.Response(200, content=body(), request=request, headers={"content-type": kind})
    return [chunk async for chunk in read_chunks(response, silence_s)]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph.fast_stream, "AFTER_FINISH_S", 0.05)
    monkeypatch.setattr(graph.fast_stream, "DRAIN_S", 0.05)


@pytest.mark.parametrize(
    "pieces",
    [
        (TEXT, FINISH, USAGE, DONE),
        (TEXT + FINISH + USAGE + DONE,),
        (TEXT, FINISH, USAGE),
        (TEXT, FINISH, USAGE.rstrip()),
        (TEXT, FINISH, USAGE, DONE.rstrip()),
        (TEXT, FINISH, USAGE, b""),
        (TEXT, FINISH, USAGE, httpx2.ReadError("reset")),
        (TEXT, FINISH, USAGE, DONE, b""),
        (TEXT, FINISH, USAGE, DONE, httpx2.ReadError("reset")),
    ],
)
async def test_a_stream_with_either_end_marker_is_whole(pieces: tuple[Any, ...]) -> None:
    assert len(await read(*pieces)) == 3


async def test_done_alone_ends_a_stream_whose_model_gave_no_reason() -> None:
    assert len(await read(TEXT, DONE)) == 1


@pytest.mark.parametrize("pieces", [(TEXT,), (TEXT, FINISH[:20]), (TEXT, TEXT.rstrip())])
async def test_a_stream_with_neither_end_marker_is_cut(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(AgentInvocationError, match="cut off") as caught:
        await read(*pieces)
    assert (caught.value.code, caught.value.retryable) == ("truncated", True)


@pytest.mark.parametrize("pieces", [(), (DONE,), (b"<html></html>",), (b": only a comment\n\n",)])
async def test_a_stream_with_no_chunk_is_empty(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(AgentInvocationError) as caught:
        await read(*pieces)
    assert caught.value.code == "empty_stream"


async def test_comments_alone_are_silence() -> None:
    with pytest.raises(httpx2.ReadTimeout):
        await read(TEXT, b"", silence_s=0.03)


@pytest.mark.parametrize(
    "event", [b'data: {"error":{"code":"x"}}\n\n', b'data: {"error":"x"}\n\n', b'event: error\ndata: {"code":"x"}\n\n']
)
async def test_an_error_inside_the_stream_is_raised_with_its_body(event: bytes) -> None:
    with pytest.raises(openai.APIError) as caught:
        await read(TEXT, event, DONE)
    assert caught.value.body in ({"code": "x"}, "x")


@pytest.mark.parametrize(
    ("body", "error"),
    [(b'{"error":{"code":"x"}}', openai.APIError), (b'{"choices":[]}', ValueError), (b"", ValueError)],
)
async def test_a_json_document_is_no_stream(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        await (read(body, kind="application/json; charset=utf-8") if body else read(kind="application/json"))


@pytest.mark.parametrize("data", [b"data: {half\n\n", b"data: [1]\n\n", b"data: \xff\n\n"])
async def test_a_chunk_that_is_no_json_object_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        await read(TEXT, data, DONE)
