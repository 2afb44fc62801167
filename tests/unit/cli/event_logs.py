"""Event logs as jobs make them, drawn at random."""

from __future__ import annotations

from random import Random
from typing import Any

from schemas.job_event import EventId

JOB_ID = "01a22e79-f7e6-7b5a-a83e-41fe332e9d55"
SESSION_ID = "01a22e79-fa63-70d3-8367-5a68721f41de"
WORDS = ("one ", "two\n", "thrée ", "四", "🙂 ", "\n\n", "a\tb", " ", "x" * 300, "data: ", "id: 1-1\n", "\u2028")


class LogBuilder:
    """Appends events under the ids a job would give them."""

    def __init__(self) -> None:
        self.log: list[tuple[EventId, dict[str, Any]]] = []
        self._epoch, self._seq = -1, 0

    def opens(self, kind: str, **fields: Any) -> None:
        """A transition: the first event of a new epoch."""
        self._epoch, self._seq = self._epoch + 1, 0
        self.adds(kind, **fields)

    def adds(self, kind: str, **fields: Any) -> None:
        self._seq += 1
        event = {"kind": kind, "job_id": JOB_ID, "at": "2026-11-30T12:00:00.000Z", **fields}
        self.log.append((EventId(self._epoch, self._seq), event))


def short_log(text: str = "Hello there.") -> list[tuple[EventId, dict[str, Any]]]:
    """A job that was answered at the first attempt, a word at a time."""
    log = LogBuilder()
    log.opens("queued", queue="chat", session_id=SESSION_ID)
    log.opens("started", attempt=1, worker="w")
    for word in text.split(" "):
        log.adds("text", text=word if log.log[-1][1]["kind"] != "text" else f" {word}")
    log.opens("final", outcome="ok", response=[answer(text)], usage=None, message_ids=["m"])
    return log.log


def random_log(random: Random) -> list[tuple[EventId, dict[str, Any]]]:
    """A job with up to three attempts and any end; a `final` holds what its attempt has said."""
    log = LogBuilder()
    log.opens("queued", queue="chat", session_id=SESSION_ID)
    while True:
        text = _attempt(random, log)
        end = random.choice(("final", "final", "cancelled", "failed", "retrying", "requeued"))
        if end == "retrying":
            log.opens("retrying", error=error(), retry_at="2026-11-30T12:00:02.000Z")
        elif end == "requeued":
            log.opens("requeued", reason="shutdown")
        elif end == "failed":
            log.opens("failed", error=error(), dead_letter_id="d")
            return log.log
        else:
            said = {"outcome": "ok", "usage": None} if end == "final" else {"reason": "requested"}
            log.opens(end, response=[answer(text)], message_ids=["m"], **said)
            return log.log


def _attempt(random: Random, log: LogBuilder) -> str:
    """One attempt; returns the text it has shown."""
    log.opens("started", attempt=1, worker="w")
    text = ""
    if random.random() < 0.3:
        text = random.choice(WORDS)
        log.adds("snapshot", text=text, tools=[tool("finished")])
    for _ in range(random.randrange(12)):
        match random.randrange(8):
            case 0:
                log.adds("tool", tool=tool("started"))
            case 1:
                log.opens("snapshot", text=text, tools=[])  # the log was lost and rebuilt
            case _:
                word = random.choice(WORDS)
                text += word
                log.adds("text", text=word)
    return text


def tool(status: str) -> dict[str, Any]:
    more: dict[str, Any] = {"args": {"n": 1}} if status == "started" else {"result": "2", "is_error": False}
    return {"id": "t1", "name": "calculator", "status": status, **more}


def error() -> dict[str, Any]:
    return {"code": "provider_error", "message": "the model's server failed", "retryable": True}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
