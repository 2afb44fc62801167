"""Tools whose effect can be seen: each call appends one line to a file. Loaded by the workers of a chaos run."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

from schemas.tool import Tool, ToolContext

#: Names the file.
VARIABLE = "CHAOS_EFFECTS"
_PARAMETERS = {
    "type": "object",
    "properties": {"key": {"type": "string"}, "hold_ms": {"type": "integer"}},
    "required": ["key", "hold_ms"],
    "additionalProperties": False,
}


def _append(job_id: str, key: str) -> None:
    descriptor = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{job_id} {key}\n".encode())
    finally:
        os.close(descriptor)


async def _record(context: ToolContext, key: str, hold_ms: int) -> str:
    _append(context.job_id, key)
    # Somebody may die between an effect and its result.
    await asyncio.sleep(hold_ms / 1000)
    return f"{key} is recorded"


def _record_in_a_thread(context: ToolContext, key: str, hold_ms: int) -> str:
    _append(context.job_id, key)
    time.sleep(hold_ms / 1000)
    return f"{key} is recorded"


RECORD = Tool(
    name="record",
    description="Records a key.",
    parameters=_PARAMETERS,
    function=_record,
    effect="write",
    wants_context=True,
)
RECORD_IN_A_THREAD = Tool(
    name="record_in_a_thread",
    description="Records a key.",
    parameters=_PARAMETERS,
    function=_record_in_a_thread,
    effect="write",
    wants_context=True,
)


def read_effects(path: Path) -> Counter[tuple[str, str]]:
    """How often each (job id, key) was recorded."""
    if not path.exists():
        return Counter()
    lines = path.read_text(encoding="utf-8").splitlines()
    return Counter((job_id, key) for job_id, key in (line.split(" ", 1) for line in lines))
