"""Shows several log files at once in the terminal, as they grow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POLL_PAUSE_S = 0.1


class LogView:
    """Calls `show` with each new line of every `*.log` in `folder`, the log's name before it."""

    def __init__(self, folder: Path, show: Callable[[str], None]) -> None:
        self._folder = folder
        self._show = show
        self._read_to = {path: path.stat().st_size for path in folder.glob("*.log")}

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            self.show_new()
            await asyncio.sleep(POLL_PAUSE_S)

    def show_new(self) -> None:
        """Show the whole lines that were added since the last look."""
        for path in sorted(self._folder.glob("*.log")):
            start = self._read_to.get(path, 0)
            if path.stat().st_size < start:  # it was moved aside or cut
                start = 0
            with path.open("rb") as file:
                file.seek(start)
                lines, newline, _ = file.read().rpartition(b"\n")
            self._read_to[path] = start + len(lines) + len(newline)
            if newline:
                for line in lines.decode("utf-8", errors="replace").split("\n"):
                    self._show(f"{path.stem:7} | {line}")
