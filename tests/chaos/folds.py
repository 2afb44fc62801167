"""Two folds of a client's frames: the program's own, and one that shares nothing with it."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.fold import Fold
from tests.chaos.frames import Frame

TERMINAL = ("final", "failed", "cancelled")


def folded(received: Sequence[Frame]) -> str:
    """By schemas/fold.py, frame by frame as received."""
    fold = Fold()
    for frame in received:
        fold.apply(frame.id, frame.event)
    return fold.text


def simply_folded(received: Sequence[Frame]) -> str:
    """From the back: the last terminal event says it all; else what the last opening and the pieces after it say."""
    known = sorted({frame.id: frame.event for frame in received}.items())
    if known and known[-1][1]["kind"] in TERMINAL:
        return response_text(known[-1][1])
    return shown([event for _, event in known])


def shown(events: Sequence[dict[str, object]]) -> str:
    """What stands on the screen after these events, none of them terminal."""
    pieces: list[str] = []
    for event in reversed(events):
        if event["kind"] == "text":
            pieces.append(str(event["text"]))
        elif event["kind"] == "snapshot":
            pieces.append(str(event["text"]))
            break
        elif event["kind"] in ("queued", "started"):
            break
    return "".join(reversed(pieces))


def response_text(event: dict[str, object]) -> str:
    """What a terminal event makes of the text."""
    response = event.get("response", [])
    assert isinstance(response, list)
    return "".join(message["content"] for message in response if message["role"] == "assistant")
