"""Ends a test's server when the tests themselves are killed, and so cannot do it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def watchdog(command: str) -> Iterator[None]:
    """Run the shell `command` if this process dies within the context."""
    # The pipe to it closes when we end, however we end.
    guard = subprocess.Popen(["/bin/sh", "-c", f"read _ || {command}"], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        guard.kill()
        guard.communicate()
