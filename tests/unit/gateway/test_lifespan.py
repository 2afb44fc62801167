"""The gateway under any ASGI server: its lifespan opens and closes what it needs, or says why it cannot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gateway.app import create_app
from schemas.settings import Settings


class Server:
    """The lifespan's other side."""

    def __init__(self, settings: Settings) -> None:
        self.app = create_app(settings)
        self.said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def is_open(self) -> bool:
        return self.app.services is not None

    async def run(self) -> None:
        await self.app({"type": "lifespan"}, self._told.get, self.said.put)  # type: ignore[arg-type] # plain dicts

    async def tell(self, what: str) -> dict[str, Any]:
        await self._told.put({"type": f"lifespan.{what}"})
        return await asyncio.wait_for(self.said.get(), 5)


async def test_it_opens_when_told_and_closes_when_told(tmp_path: Path) -> None:
    server = Server(Settings.model_validate({"data_dir": tmp_path, "redis_url": "redis://127.0.0.1:1/0"}))
    running = asyncio.create_task(server.run())
    assert not server.is_open()
    assert await server.tell("startup") == {"type": "lifespan.startup.complete"}
    assert server.is_open()
    assert await server.tell("shutdown") == {"type": "lifespan.shutdown.complete"}
    await running


async def test_what_can_never_work_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for wrong in ({"database_url": "mysql://x/y"}, {"data_dir": tmp_path / "file" / "below"}):
        server = Server(Settings.model_validate({"data_dir": tmp_path, **wrong}))
        running = asyncio.create_task(server.run())
        said = await server.tell("startup")
        assert said["type"] == "lifespan.startup.failed"
        assert said["message"]
        assert "\n" not in said["message"]
        await running
