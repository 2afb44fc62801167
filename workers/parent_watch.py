"""A process that was started by another one ends when that is gone: nobody else would ever stop it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import structlog

#: How often it looks whether the other one is still there.
LOOK_S = 0.5

logger = structlog.get_logger(__name__)


def watch_parent(parent: int, begin_shutdown: Callable[[], object], patience_s: float) -> None:
    """Begin the shutdown when the process `parent` is gone, and end this one if that takes longer than `patience_s`.

    On a thread: the event loop may be what stands still.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        logger.warning("the process that started this one is gone; it shuts down", parent=parent)
        begin_shutdown()
        time.sleep(patience_s)
        logger.error("the process does not end; it gives up")
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
