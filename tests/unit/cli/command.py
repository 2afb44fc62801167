"""The `chatmill` command inside the test's own process: quick, with its output in hand."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from cli.main import main


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Its output read as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


async def chatmill(*arguments: str, stdin: str = "") -> Ended:
    """Run a command line in a thread, beside the servers of the test."""
    return await asyncio.to_thread(run_chatmill, *arguments, stdin=stdin)


def run_chatmill(*arguments: str, stdin: str = "") -> Ended:
    """Run a command line."""
    out, err = io.StringIO(), io.StringIO()
    typed = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), patch.object(sys, "stdin", typed):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    return Ended(code, out.getvalue(), err.getvalue())
