"""A hundred chats at once: what a token costs in CPU, how late it is, and what a chat costs in memory."""

from __future__ import annotations

import asyncio
import os
import re
import time
from typing import Any

import openai
import psutil
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from benchmarks.figures import Spread
from benchmarks.sse_client import follow_new_job
from benchmarks.stack import Stack

_STAMP = re.compile(r"@(\d+)")
OURS = ("worker", "gateway", "valkey")


async def measure_load(stack: Stack, chats: int, words: int, pace_ms: int) -> dict[str, Any]:
    """CPU per token, relay time (model's sending to client's receiving) and memory per chat, for each way in turn."""
    question = f"[words={words}][stamp][pace={pace_ms}]"
    await _all(chats, lambda: _chatmill(stack, f"[words=5][stamp][pace={pace_ms}]"))
    report: dict[str, Any] = {}

    before, cpu = stack.memory_bytes("worker"), {name: stack.cpu_s([name]) for name in OURS}
    peak = asyncio.create_task(_peak_memory(stack))
    late = await _all(chats, lambda: _chatmill(stack, question))
    tokens = chats * words
    used = {name: (stack.cpu_s([name]) - cpu[name]) / tokens * 1e6 for name in OURS}
    peak.cancel()
    report["chatmill"] = {
        "cpu_us_per_token": round(sum(used.values())),
        **{f"{name}_us_per_token": round(value) for name, value in used.items()},
        "relay": Spread.of(late).milliseconds(),
        "worker_kb_per_chat": round(max(await _result(peak) - before, 0) / chats / 1024),
    }
    sdk = openai.AsyncOpenAI(base_url=stack.model_url, api_key="demo", max_retries=0)
    report["openai SDK, in one process"] = await _in_process(chats, words, lambda: _openai(sdk, question))
    await sdk.close()
    chat = ChatOpenAI(model="demo", base_url=stack.model_url, api_key=SecretStr("demo"), max_retries=0)
    report["ChatOpenAI, in one process"] = await _in_process(chats, words, lambda: _chat_openai(chat, question))
    return report


async def _in_process(chats: int, words: int, one: Any) -> dict[str, Any]:
    process = psutil.Process(os.getpid())
    before, started = process.memory_info().rss, process.cpu_times()
    late = await _all(chats, one)
    ended = process.cpu_times()
    used = ended.user + ended.system - started.user - started.system
    return {
        "cpu_us_per_token": round(used / (chats * words) * 1e6),
        "relay": Spread.of(late).milliseconds(),
        "kb_per_chat": round(max(process.memory_info().rss - before, 0) / chats / 1024),
    }


async def _all(chats: int, one: Any) -> list[float]:
    """Run `chats` at once; the relay times of all their tokens, in seconds."""
    results = await asyncio.gather(*(one() for _ in range(chats)))
    return [late for result in results for late in result]


async def _chatmill(stack: Stack, question: str) -> list[float]:
    late = []
    async for arrived, event in follow_new_job(stack.gateway_url, {"message": question, "tools": []}):
        if event["kind"] == "text":
            late.extend(_lateness(arrived, event["text"]))
    return late


async def _openai(client: openai.AsyncOpenAI, question: str) -> list[float]:
    late = []
    stream = await client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": question}], stream=True
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            late.extend(_lateness(time.time(), chunk.choices[0].delta.content))
    return late


async def _chat_openai(chat: ChatOpenAI, question: str) -> list[float]:
    late = []
    async for chunk in chat.astream([HumanMessage(question)]):
        late.extend(_lateness(time.time(), str(chunk.content)))
    return late


def _lateness(arrived: float, text: str) -> list[float]:
    return [arrived - int(stamp) / 1e6 for stamp in _STAMP.findall(text)]


async def _peak_memory(stack: Stack) -> int:
    peak = 0
    try:
        while True:
            peak = max(peak, stack.memory_bytes("worker"))
            await asyncio.sleep(0.25)
    except asyncio.CancelledError:
        return peak


async def _result(task: asyncio.Task[int]) -> int:
    return await task
