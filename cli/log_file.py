"""The log file of a process that `chatmill up` started."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: A log that is larger when its process starts is moved aside (`worker.log.1`), replacing the one moved before it.
ROTATE_BYTES = 5 * 1024 * 1024
#: A log that outgrows this while its process runs keeps its last quarter.
TRIM_BYTES = 4 * ROTATE_BYTES


class LogFile:
    """A file that processes append to, bounded in size; `tail()` is what they wrote since the last `open()`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = 0

    def open(self) -> int:
        """A file descriptor to append to; the caller closes it. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._size() > ROTATE_BYTES:
            self.path.replace(self.path.with_name(self.path.name + ".1"))
        self._start = self._size()
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def text(self) -> str:
        """What was written since the last `open()`."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._start)
                return file.read().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def tail(self, lines: int = 15) -> str:
        """The last `lines` lines written since the last `open()`."""
        return "\n".join(self.text().rstrip().splitlines()[-lines:])

    def trim(self) -> None:
        """Cut the file if it has outgrown its bound. Its writers append, so they go on at the new end."""
        if self._size() <= TRIM_BYTES:
            return
        # Better a log that is too long than a service that nobody watches any more.
        with contextlib.suppress(OSError), self.path.open("r+b") as file:
            file.seek(-TRIM_BYTES // 4, os.SEEK_END)
            kept = file.read()
            file.seek(0)
            file.truncate()
            file.write(kept[kept.find(b"\n") + 1 :])
        self._start = 0

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0
