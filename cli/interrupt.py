"""Ctrl-C as something a command takes note of."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def on_interrupt(call: Callable[[], None]) -> Iterator[None]:
    """Call instead of raising KeyboardInterrupt. Only a program's main thread gets to know of signals."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, call)
    except (RuntimeError, ValueError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
