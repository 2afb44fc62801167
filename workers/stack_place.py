"""Where a thread stands: the line that is to blame, of all the frames on its stack."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import FrameType

#: Our own packages: frames below a handler or a tool, which a place names only if there is nothing better.
_CHECKOUT = Path(__file__).parent.parent
_OURS = tuple(f"{_CHECKOUT / name}/" for name in ("workers", "handlers", "graph", "storage", "schemas", "cli"))
_PATHS = sysconfig.get_paths()
_LIBRARIES = (*{f"{_PATHS[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}, "<frozen ")


def place_of(thread_id: int) -> str | None:
    """`file:function:line` of where a thread stands; None if there is no such thread.

    The innermost frame of code that is neither ours nor a library's, which is a handler's or a tool's; else the
    innermost of ours; else the innermost.
    """
    frame = sys._current_frames().get(thread_id)
    if frame is None:
        return None
    best, best_rank = frame, _rank(frame)
    walked: FrameType | None = frame
    while walked is not None:
        rank = _rank(walked)
        if rank < best_rank:
            best, best_rank = walked, rank
        walked = walked.f_back
    return f"{best.f_code.co_filename}:{best.f_code.co_name}:{best.f_lineno}"


def _rank(frame: FrameType) -> int:
    file = frame.f_code.co_filename
    # Installed packages first: an environment may lie inside the checkout.
    if file.startswith(_LIBRARIES):
        return 2
    return 1 if file.startswith(_OURS) else 0
