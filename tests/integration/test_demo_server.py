"""The demo model as a real process, spoken to by the official SDK, by plain sockets and by signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.demo_server import DemoServer, demo_process, demo_server

ROOT = Path(__file__).parents[2]
CALCULATOR: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoServer]:
    with demo_server() as running:
        yield running


@pytest_asyncio.fixture
async def client(demo: DemoServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=demo.base_url, api_key="any", max_retries=0, timeout=10) as sdk:
        yield sdk


@pytest.fixture
def mark() -> str:
    """A text by which a test finds its own requests on the shared server."""
    return uuid.uuid4().hex


async def say(client: AsyncOpenAI, text: str, model: str = "demo", **fields: Any) -> tuple[str, str | None]:
    """Stream one answer; returns its text and finish reason."""
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], stream=True, **fields
    )
    pieces: list[str] = []
    reason = None
    async for chunk in stream:
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            reason = choice.finish_reason or reason
    return "".join(pieces), reason


@contextlib.asynccontextmanager
async def post(demo: DemoServer, text: str, model: str = "demo") -> AsyncIterator[asyncio.StreamReader]:
    """Send a streaming request over a socket of its own; gives what comes back, bytes and all."""
    body = json.dumps({"model": model, "stream": True, "messages": [{"role": "user", "content": text}]}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: demo\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    host, port = demo.root_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.encode() + body)
    try:
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read()


def test_it_says_that_it_is_a_demo(demo: DemoServer) -> None:
    assert b"not an AI" in get(demo.root_url + "/")


def test_models_are_listed_with_demo_first_and_found_by_name(demo: DemoServer) -> None:
    models = json.loads(get(demo.base_url + "/models"))["data"]
    assert models[0]["id"] == "demo"
    assert "demo-fault-cut" in {model["id"] for model in models}
    assert json.loads(get(demo.base_url + "/models/demo-fault-status-429-once"))["id"] == "demo-fault-status-429-once"


@pytest.mark.parametrize("path", ["/v1/models/gpt-4o", "/v1/completions", "/nothing", "/v1/chat/completions"])
def test_what_is_not_there_is_an_openai_shaped_404(demo: DemoServer, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(demo.root_url + path)
    with caught.value as response:
        assert response.code == 404
        assert json.load(response)["error"]["message"]


async def test_the_sdk_streams_an_exact_text_with_usage(client: AsyncOpenAI) -> None:
    said = 'Tabs\t, é, 😀,\n\nand  "two" spaces. '
    stream = await client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": f"[say:{json.dumps(said)}]"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == said
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(said.split()) + 1  # the space at the end is a piece of its own


async def test_the_sdk_gets_the_same_text_without_a_stream(client: AsyncOpenAI) -> None:
    completion = await client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Good evening"}]
    )
    streamed, _ = await say(client, "Good evening")
    assert completion.choices[0].message.content == streamed
    assert "demo model" in streamed


async def test_a_tool_round_goes_from_the_question_to_words(client: AsyncOpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is 17 * 23?"}]
    async with client.chat.completions.stream(model="demo-strict", messages=messages, tools=[CALCULATOR]) as stream:
        asked = (await stream.get_final_completion()).choices[0]
    assert asked.finish_reason == "tool_calls"
    assert asked.message.tool_calls
    call = asked.message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"expression": "17 * 23"}
    messages.append(
        {
            "role": "assistant",
            "tool_calls": [call.model_dump(include={"id": True, "type": True, "function": {"name", "arguments"}})],
        }
    )
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "391"})
    answered = await client.chat.completions.create(model="demo-strict", messages=messages, tools=[CALCULATOR])
    assert "17 * 23 = 391." in (answered.choices[0].message.content or "")


async def test_a_broken_history_is_a_bad_request(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\]"):
        await client.chat.completions.create(
            model="demo", messages=[{"role": "tool", "tool_call_id": "a", "content": "1"}]
        )


async def test_errors_reach_the_sdk_as_its_own(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        await say(client, "hi", "demo-401")
    with pytest.raises(openai.NotFoundError):
        await say(client, "hi", "gpt-4o")
    with pytest.raises(openai.RateLimitError) as caught:
        await say(client, "[retry-after=3]", "demo-fault-status-429")
    assert caught.value.response.headers["retry-after"] == "3"
    assert caught.value.response.headers["x-request-id"].startswith("req_demo_")


async def test_once_means_once_for_each_text(client: AsyncOpenAI, mark: str) -> None:
    for text in (f"[say:one] {mark}", f"[say:two] {mark}"):
        with pytest.raises(openai.InternalServerError):
            await say(client, text, "demo-fault-status-503-once")
        assert (await say(client, text, "demo-fault-status-503-once"))[1] == "stop"


async def test_tokens_come_at_the_pace_that_was_asked_for(client: AsyncOpenAI) -> None:
    started = time.perf_counter()
    stamps = (await say(client, "[words=6][stamp][pace=20][first=60]"))[0].split()
    elapsed = time.perf_counter() - started
    times = [int(stamp.split("@")[1]) / 1e6 for stamp in stamps]
    assert len(times) == 6
    assert times[-1] - times[0] >= 0.09
    assert elapsed >= 0.15


async def test_many_streams_run_side_by_side(client: AsyncOpenAI) -> None:
    texts = await asyncio.gather(*(say(client, f"[words={20 + n}][pace=5]") for n in range(40)))
    assert [len(text.split()) for text, _ in texts] == [20 + n for n in range(40)]


async def test_requests_can_be_looked_at_without_the_key(demo: DemoServer, client: AsyncOpenAI, mark: str) -> None:
    await say(client, mark, user="somebody")
    (seen,) = await demo.awaited(containing=mark, state="done")
    assert seen["body"]["messages"] == [{"role": "user", "content": mark}]
    assert seen["body"]["user"] == "somebody"
    assert (seen["authorization"], seen["status"]) == (True, 200)
    async with post(demo, mark) as reader:
        await reader.read()
    *_, second = await demo.awaited(2, containing=mark)
    assert second["authorization"] is False


async def test_it_sees_when_a_client_leaves(demo: DemoServer, mark: str) -> None:
    async with post(demo, f"[words=1000][pace=50] {mark}") as reader:
        await reader.readuntil(b"word2")
        (seen,) = demo.requests(containing=mark)
        assert seen["state"] == "open"
    (seen,) = await demo.awaited(containing=mark, state="gone")
    assert demo.stats()["gone"] >= 1


@pytest.mark.parametrize(
    "fault", ["no-headers", "silence", "silence-midway", "silence-heartbeats", "silence-after-finish"]
)
async def test_it_sees_when_a_client_leaves_a_silence(demo: DemoServer, fault: str, mark: str) -> None:
    async with post(demo, mark, f"demo-fault-{fault}") as reader:
        if fault != "no-headers":
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        await demo.awaited(containing=mark, state="open")
    await demo.awaited(containing=mark, state="gone")


@pytest.mark.parametrize(("fault", "shown"), [("reset", b""), ("cut", b"One"), ("cut-in-event", b'{"id"')])
async def test_connections_are_reset(demo: DemoServer, fault: str, shown: bytes, mark: str) -> None:
    received = bytearray()

    async def read() -> None:
        while piece := await reader.read(65536):
            received.extend(piece)

    async with post(demo, f"[say:One two.] {mark}", f"demo-fault-{fault}") as reader:
        with pytest.raises(ConnectionResetError):
            await read()
    assert shown in received
    await demo.awaited(containing=mark, state="broken")


async def test_connections_are_closed_within_the_body(demo: DemoServer, mark: str) -> None:
    async with post(demo, f"[say:One two.] {mark}", "demo-fault-cut-close") as reader:
        received = await reader.read()
    assert b"One" in received
    assert not received.endswith(b"\r\n0\r\n\r\n")
    await demo.awaited(containing=mark, state="broken")


async def test_a_clean_end_is_clean_although_the_answer_is_not(demo: DemoServer) -> None:
    async with post(demo, "[say:One two.]", "demo-fault-eof") as reader:
        received = await reader.read()
    assert received.endswith(b"\r\n0\r\n\r\n")
    assert b"[DONE]" not in received


async def test_zero_bytes_are_zero_bytes(demo: DemoServer) -> None:
    async with post(demo, "hi", "demo-fault-zero-bytes") as reader:
        head, body = (await reader.read()).split(b"\r\n\r\n", 1)
    assert b"text/event-stream" in head
    assert body == b"0\r\n\r\n"


async def test_line_ends_are_torn_over_two_writes(demo: DemoServer) -> None:
    async with post(demo, "[say:One]", "demo-fault-crlf-split") as reader:
        received = await reader.read()
    assert b"\r\r\n3\r\n\n\r\r\n1\r\n\n\r\n" not in received  # one write would look like this
    assert b"\r\r\n2\r\n\n\r\r\n1\r\n\n\r\n" in received


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"\xff"'])
def test_bodies_that_are_no_json_object_are_bad_requests(demo: DemoServer, raw: bytes) -> None:
    request = urllib.request.Request(demo.base_url + "/chat/completions", raw, method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    with caught.value as response:
        assert response.code == 400


def test_the_list_of_requests_can_be_cleared() -> None:
    with demo_server() as own:
        request = urllib.request.Request(own.base_url + "/chat/completions", b"{}", method="POST")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=10)
        caught.value.close()
        assert [seen["status"] for seen in own.requests()] == [400]
        urllib.request.urlopen(
            urllib.request.Request(own.root_url + "/_demo/requests", method="DELETE"), timeout=10
        ).close()
        assert own.requests() == []
        assert own.stats() == {"requests": 1, "open": 0, "done": 1, "gone": 0, "broken": 0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_ends_at_once_and_cleanly_with_streams_open(number: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "demo", cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    line = (await process.stdout.readline()).decode()
    own = DemoServer(next(word for word in line.split() if word.startswith("http")), process.pid)
    async with contextlib.AsyncExitStack() as stack:
        readers = [
            await stack.enter_async_context(post(own, text, model))
            for text, model in (("[words=1000]", "demo"), ("hi", "demo-fault-silence"), ("hi", "demo-fault-no-headers"))
        ]
        await own.awaited(3, state="open")
        waiting = asyncio.create_task(own.awaited(9))
        started = time.perf_counter()
        process.send_signal(number)
        async with asyncio.timeout(5):
            assert await process.wait() == 0
        assert time.perf_counter() - started < 2
        for reader in readers:
            with contextlib.suppress(ConnectionError):
                await reader.read()
        with contextlib.suppress(AssertionError, OSError):
            await waiting
    assert await process.stderr.read() == b""


async def test_it_starts_and_ends_inside_an_asynchronous_test() -> None:
    async with demo_process("--first", "1") as own:
        assert own.stats()["requests"] == 0
    with pytest.raises(ProcessLookupError):
        os.kill(own.pid, 0)


def test_it_takes_an_inherited_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "demo", "--fd", str(listening.fileno())],
            cwd=ROOT,
            pass_fds=[listening.fileno()],
            stdout=subprocess.PIPE,
        )
    assert process.stdout is not None
    with process.stdout as stdout:
        try:
            assert f"http://127.0.0.1:{port}/v1" in stdout.readline().decode()
            assert b"demo model" in get(f"http://127.0.0.1:{port}/")
        finally:
            process.terminate()
            assert process.wait(10) == 0


def test_a_busy_port_is_one_line_and_a_failure(demo: DemoServer) -> None:
    port = demo.root_url.rsplit(":", 1)[1]
    ended = subprocess.run(
        [sys.executable, "-m", "demo", "--port", port],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert port in ended.stderr


def test_faults_can_be_listed() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "demo", "--list-faults"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert "demo-fault-cut " in ended.stdout
