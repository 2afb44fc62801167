"""Answers that are cut off in the middle and go on in the next attempt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from graph.llm import close_loop_models
from tests.demo_server import DemoServer
from tests.integration.workers.mill import Mill, eventually, settled
from tests.integration.workers.writing_tools import WRITING_TOOLS, effects_in
from workers.attempt import StopReason


@asynccontextmanager
async def agents(
    redis_url: str, database_url: str, namespace: str, demo: DemoServer, **named: Any
) -> AsyncIterator[Mill]:
    """A worker of LangGraph agents that may write."""
    named = {"agent_framework": "langgraph", "threads": 4, "demo_url": demo.base_url, "model": "demo-strict", **named}
    async with Mill(redis_url, database_url, namespace, own_tools=WRITING_TOOLS, **named) as mill:
        try:
            yield mill
        finally:
            await close_loop_models()


class Scene:
    """What the agents of one test do, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.effects_file = folder / "effects"
        self.gate = folder / "gate"

    def note(self, text: str, *, waits: bool = False, tool: str = "note") -> str:
        """A call that writes, and then waits at the gate."""
        args = {"file": str(self.effects_file), "text": text, **({"until": str(self.gate)} if waits else {})}
        return f"[call:{tool} {json.dumps(args)}]"

    def wait(self) -> str:
        """A call that changes nothing and waits at the gate."""
        return f"[call:wait {json.dumps({'until': str(self.gate)})}]"

    def effects(self, job_id: str) -> list[str]:
        """What was noted for this job, in order."""
        return [line["text"] for line in effects_in(self.effects_file) if line["job"] == job_id]

    def keys(self, job_id: str) -> list[str | None]:
        """The idempotency keys of the same calls."""
        return [line["key"] for line in effects_in(self.effects_file) if line["job"] == job_id]

    def sent(self, demo: DemoServer) -> list[list[dict[str, Any]]]:
        """The messages of every request of this test, all of which were accepted."""
        requests = demo.requests(containing=str(self.gate.parent))
        assert all(request["status"] == 200 for request in requests), requests
        return [request["body"]["messages"] for request in requests]


async def at_the_gate(mill: Mill, job_id: str, scene: Scene, tool: str, *effects: str, count: int = 1) -> None:
    """Wait until the job's calls of this tool wait, the last of `count` among them, and all others have ended."""

    async def look() -> bool:
        notes = [event["tool"] for _, event in await mill.events(job_id) if event["kind"] == "tool"]
        begun = [note for note in notes if note["status"] == "started"]
        ended = [note["id"] for note in notes if note["status"] == "finished"]
        waiting = sum(note["name"] == tool for note in begun) >= count
        return waiting and all(note["id"] in ended for note in begun if note["name"] != tool)

    await eventually(look)

    async def have_happened() -> bool:
        return scene.effects(job_id) == list(effects)

    await eventually(have_happened)


async def cut_off(
    mill: Mill, scene: Scene, message: str, tool: str, *effects: str, **fields: Any
) -> tuple[str, asyncio.Task[None]]:
    """A job whose attempt was released while `tool` waited; the gate is open for the next one, which runs."""
    job_id = await mill.accept(message, **fields)
    looking = mill.looking()
    await at_the_gate(mill, job_id, scene, tool, *effects)
    release(mill)

    async def look() -> bool:
        return "release" in await mill.transitions(job_id)

    await eventually(look)
    scene.gate.touch()
    return job_id, looking


def release(mill: Mill) -> None:
    """Stop what runs, as a shutdown does."""
    for held in mill.desk.held():
        mill.desk.stop(held, StopReason.SHUTDOWN)


async def continued(mill: Mill, scene: Scene, message: str, tool: str, *effects: str, **fields: Any) -> str:
    """The same, once it has ended."""
    job_id, looking = await cut_off(mill, scene, message, tool, *effects, **fields)
    await settled(looking)
    await mill.ended(job_id)
    return job_id
