"""From a command's coroutine to its exit code."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from cli.failure import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Coroutine


def run(command: Coroutine[Any, Any, int | None]) -> NoReturn:
    """Run a command to its end and leave with the code it returns; None is 0."""
    try:
        code = asyncio.run(command)
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code or 0)
