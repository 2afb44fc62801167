"""Tools whose effect can be seen: each call adds a line to a file, and may then wait for another file.

`note` writes; `note_by_key` writes too and takes an idempotency key; `wait` only waits. The line is a JSON object:
`job`, `text`, `key`, `pid`.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from schemas.tool import Tool, ToolContext, ToolEffect

#: Seconds between two looks for a file.
LOOK_S = 0.005


async def _note(context: ToolContext, file: str, text: str, until: str = "") -> str:
    line = {"job": context.job_id, "text": text, "key": context.idempotency_key, "pid": os.getpid()}
    with Path(file).open("a") as effects:  # noqa: ASYNC230 - a local file of the test
        effects.write(json.dumps(line) + "\n")
    await _appears(until)
    return f"{text} is noted"


async def _wait(context: ToolContext, until: str) -> str:
    await _appears(until)
    return "waited"


async def _appears(path: str) -> None:
    while path and not Path(path).exists():  # noqa: ASYNC110, ASYNC240 - files are what a test can make
        await asyncio.sleep(LOOK_S)


def _tool(name: str, function: Any, effect: ToolEffect, *required: str, by_key: bool = False) -> Tool:
    properties = {one: {"type": "string"} for one in ("file", "text", "until")}
    wanted = properties if len(required) > 1 else {"until": properties["until"]}
    return Tool(
        name=name,
        description=f"{name}s something.",
        parameters={"type": "object", "properties": wanted, "required": list(required)},
        function=function,
        effect=effect,
        timeout_s=60,
        wants_context=True,
        takes_idempotency_key=by_key,
    )


NOTE = _tool("note", _note, "write", "file", "text")
NOTE_BY_KEY = _tool("note_by_key", _note, "write", "file", "text", by_key=True)
WAIT = _tool("wait", _wait, "read", "until")
WRITING_TOOLS = (NOTE, NOTE_BY_KEY, WAIT)
SETTINGS = f"""
[tools]
note = "{__name__}:NOTE"
note_by_key = "{__name__}:NOTE_BY_KEY"
wait = "{__name__}:WAIT"
"""


def effects_in(path: Path) -> list[dict[str, Any]]:
    """The calls that took effect, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
