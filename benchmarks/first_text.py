"""How long until the first text: through chatmill, and by calling the model yourself, taking turns on one machine."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import openai
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from benchmarks.figures import Spread
from benchmarks.sse_client import follow_new_job
from benchmarks.stack import Stack

#: Two words at once: the model itself takes no time.
QUESTION = "[words=2][pace=0][first=0]"
WARM_UP = 20


async def measure_first_text(stack: Stack, rounds: int) -> dict[str, Any]:
    """Median and p99 of the time to the first text, idle, and what chatmill adds."""
    sdk = openai.AsyncOpenAI(base_url=stack.model_url, api_key="demo", max_retries=0)
    chat = ChatOpenAI(model="demo", base_url=stack.model_url, api_key=SecretStr("demo"), max_retries=0)
    ways: dict[str, Callable[[], Awaitable[float]]] = {
        "openai SDK": lambda: _openai(sdk),
        "ChatOpenAI": lambda: _chat_openai(chat),
        "chatmill": lambda: _chatmill(stack),
        "chatmill, no tools offered": lambda: _chatmill(stack, tools=[]),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + WARM_UP):
        for name, way in ways.items():
            taken = await way()
            if number >= WARM_UP:
                times[name].append(taken)
    await sdk.close()
    spreads = {name: Spread.of(values) for name, values in times.items()}
    report: dict[str, Any] = {name: spread.milliseconds() for name, spread in spreads.items()}
    report["chatmill over the openai SDK, p50"] = round(spreads["chatmill"].p50 / spreads["openai SDK"].p50, 2)
    return report


async def _openai(client: openai.AsyncOpenAI) -> float:
    started, first = time.perf_counter(), 0.0
    stream = await client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": QUESTION}], stream=True
    )
    async for chunk in stream:
        if not first and chunk.choices and chunk.choices[0].delta.content:
            first = time.perf_counter() - started
    return first


async def _chat_openai(chat: ChatOpenAI) -> float:
    started, first = time.perf_counter(), 0.0
    async for chunk in chat.astream([HumanMessage(QUESTION)]):
        if not first and chunk.content:
            first = time.perf_counter() - started
    return first


async def _chatmill(stack: Stack, tools: list[str] | None = None) -> float:
    job: dict[str, Any] = {"message": QUESTION}
    if tools is not None:
        job["tools"] = tools
    started, first = time.time(), 0.0
    async for arrived, event in follow_new_job(stack.gateway_url, job):
        if event["kind"] == "text" and not first:
            first = arrived - started
    return first
