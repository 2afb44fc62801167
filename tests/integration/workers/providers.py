"""An agent whose provider is down for as long as a file is there: the user's message is the file's path."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from schemas.models import ModelEntry
from schemas.settings import FrameworkEntry
from tests.integration.workers.mill import Mill, eventually
from tests.integration.workers.scripted import PATH as SCRIPTED
from tests.integration.workers.scripted import ScriptedHandler
from workers.cancelling import cancel_all

PATH = f"{__name__}:ProviderHandler"
SHAKY = "shaky.example/shaky"
STEADY = "steady.example/steady"
MODELS = {name: ModelEntry(base_url=f"https://{name}.example/v1") for name in ("shaky", "steady")}
#: A breaker that opens soon and tries soon.
QUICK: dict[str, Any] = {
    "frameworks": {"provider": FrameworkEntry(handler=PATH), "scripted": FrameworkEntry(handler=SCRIPTED)},
    "agent_framework": "provider",
    "models": MODELS,
    "model": "steady",
    "breaker_failures": 3,
    "breaker_pause_s": 0.3,
    "breaker_longest_pause_s": 2.0,
}


class ProviderHandler(ScriptedHandler):
    """Fails, or says which model it asked."""

    def _script(self, user_message: str) -> list[Any]:
        if Path(user_message).exists():
            return [["raise", "again"]]
        target = self.session.model_target
        return [["text", target.name if target else "none"]]


def fails(provider: Path) -> None:
    """From now on the provider is down."""
    provider.touch()


def answers(provider: Path) -> None:
    """From now on it is up."""
    provider.unlink()


@asynccontextmanager
async def working(mill: Mill, slots: int = 4) -> AsyncIterator[None]:
    """The mill at work: slots that look for jobs, a reconciler, and the copy of the breakers kept fresh."""

    async def slot() -> None:
        while True:
            await mill.desk.look()
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(slot()) for _ in range(slots)]
    tasks += [asyncio.create_task(mill.reconciler.run()), asyncio.create_task(mill.desk.breakers.run())]
    try:
        yield
    finally:
        await cancel_all(tasks)


async def opened(mill: Mill, down: Path, jobs: int = 3) -> list[str]:
    """Jobs that have failed until the breaker of `shaky` is open."""
    fails(down)
    failed = [await mill.accept(str(down), model="shaky") for _ in range(jobs)]
    claims = [await mill.desk.claim_next() for _ in failed]
    for claimed in claims:
        assert claimed is not None
        await mill.desk.run(claimed)

    async def is_open() -> bool:
        return mill.desk.breakers.open_for("provider", "shaky") == SHAKY

    await eventually(is_open)
    return failed
