"""Lines for the person at the terminal, who may be gone."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO


def say(text: str) -> None:
    """Print a line to stdout."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """Print a line to stderr."""
    _write(sys.stderr, text)


def _write(stream: TextIO, text: str) -> None:
    try:
        print(text, file=stream, flush=True)
    except OSError:
        # The terminal was closed or the reader of a pipe has ended. Going on matters more than being heard, also for
        # the flush at the end of the interpreter.
        with contextlib.suppress(OSError), open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
