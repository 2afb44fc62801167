"""Finding and ending what a killed `chatmill up` left running.

Everything `up` starts carries a random mark in its environment, and hands it on to whatever it starts itself. A process
with the mark is therefore ours and nobody else's, even if its parent is dead or process numbers have been used again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MARK = "CHATMILL_RUN_ID"
#: How long the processes of a killed `up` get to end in order, each.
GRACE_S = 3.0
PAUSE_S = 0.02


def marked_processes(run_id: str) -> set[int]:
    """Process ids of all that carry the mark, except this process."""
    mark = f"{MARK}={run_id}"
    found = _marked_in_proc(mark.encode()) if Path("/proc/self/environ").exists() else _marked_by_ps(mark)
    return found - {os.getpid()}


def end_processes(run_id: str, in_order: Iterable[int] = ()) -> int:
    """End everything that carries the mark and say how many that was.

    The processes `in_order` are asked to end first, one after the other, and get `GRACE_S` each.
    """
    found = marked_processes(run_id)
    for pid in filter(found.__contains__, in_order):
        _signal({pid}, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while pid in marked_processes(run_id) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
    deadline = time.monotonic() + GRACE_S
    # More than once: what is being ended may start something meanwhile.
    while (left := marked_processes(run_id)) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(PAUSE_S)
    return len(found)


def _marked_in_proc(mark: bytes) -> set[int]:
    found = set()
    for folder in Path("/proc").iterdir():
        # Other people's processes cannot be read, and any process may end while we look. A zombie's reads as empty.
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def _marked_by_ps(mark: str) -> set[int]:
    """For macOS, whose `ps -E` shows the environment behind the command."""
    listing = subprocess.run(
        ["/bin/ps", "-axEww", "-o", "pid=,command="], capture_output=True, text=True, errors="replace", check=False
    )
    rows = (line.split() for line in listing.stdout.splitlines())
    return {int(pid) for pid, *words in rows if mark in words}


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
