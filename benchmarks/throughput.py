"""How many answers a second when the model takes no time: saved jobs through chatmill, bare calls in one process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import openai
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from benchmarks.sse_client import follow_new_job
from benchmarks.stack import Stack

QUESTION = "[words=1][pace=0][first=0]"
#: Requests under way at once: enough to keep a worker busy.
CLIENTS = 32


async def measure_throughput(stack: Stack, jobs: int) -> dict[str, Any]:
    """Answers per second: each job accepted, answered, saved, and followed to its end by a client of its own."""
    sdk = openai.AsyncOpenAI(base_url=stack.model_url, api_key="demo", max_retries=0)
    chat = ChatOpenAI(model="demo", base_url=stack.model_url, api_key=SecretStr("demo"), max_retries=0)

    async def through_chatmill() -> None:
        async for _arrived, _event in follow_new_job(stack.gateway_url, {"message": QUESTION, "tools": []}):
            pass

    async def by_openai() -> None:
        stream = await sdk.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": QUESTION}], stream=True
        )
        async for _chunk in stream:
            pass

    async def by_chat_openai() -> None:
        async for _chunk in chat.astream([HumanMessage(QUESTION)]):
            pass

    ways: dict[str, Callable[[], Awaitable[None]]] = {
        "chatmill, jobs_per_s": through_chatmill,
        "openai SDK, calls_per_s": by_openai,
        "ChatOpenAI, calls_per_s": by_chat_openai,
    }
    report: dict[str, Any] = {name: round(await _rate(way, jobs)) for name, way in ways.items()}
    await sdk.close()
    return {"count": jobs, "clients": CLIENTS, **report}


async def _rate(one: Callable[[], Awaitable[None]], count: int) -> float:
    waiting = iter(range(count))

    async def client() -> None:
        for _ in waiting:
            await one()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return count / (time.perf_counter() - started)
