"""What is asked: conversations of one or several turns, all of it from the seed."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

#: Models that fail the first attempt of a text, or every one, by a fault of their own.
FAILING_ONCE = ("status-500-once", "cut-once", "eof-once", "zero-bytes-once", "error-after-text-once", "html-502-once")
FAILING_ALWAYS = ("status-500", "cut")
REFUSING = ("status-400", "status-401", "context-length")
BUSY = ("status-429-once", "rate-limit-bare-once")
#: These take as long as an attempt may.
SILENT = ("silence-midway-once", "no-headers-once")
FAULT_MODEL = "demo-fault-"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, and what its producer does with it."""

    job_id: str
    kind: str
    body: dict[str, Any]
    #: `post`, `stream` (its own response is its event stream) or `raw` (straight to Redis).
    via: str = "post"
    followers: int = 1
    #: Seconds after acceptance.
    cancel_after_s: float | None = None
    #: Sent again under the same id.
    repeated: bool = False
    #: What its write tools are to do, each one at most once.
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in one session, or a single stateless one."""

    #: When it begins, as a part of the time in which faults are made.
    at: float
    turns: tuple[Turn, ...]
    #: Each turn waits for the answer of the one before it.
    patient: bool = False


class Mix:
    """Draws conversations. `busy` says whether sessions may interrupt and reject."""

    def __init__(self, rng: random.Random, *, short: bool) -> None:
        self._rng = rng
        self._short = short
        self._kinds: dict[str, tuple[int, Callable[[int], Turn]]] = {
            "words": (6, self._words),
            "slow": (4, self._slow),
            "tools": (3, self._tools),
            "write": (6, self._write),
            "fails once": (2, lambda number: self._model(number, "fails once", FAILING_ONCE)),
            "fails always": (1, self._fails_always),
            "refused": (1, lambda number: self._model(number, "refused", REFUSING)),
            "busy": (1, lambda number: self._model(number, "busy", BUSY)),
        }
        if not short:
            self._kinds["silent"] = (1, lambda number: self._model(number, "silent", SILENT))
        self._number = 0

    def conversations(self, jobs: int) -> list[Conversation]:
        """So many jobs in conversations, by the time at which they begin."""
        found: list[Conversation] = []
        left = jobs
        while left > 0:
            size = min(left, self._rng.choice((1, 1, 1, 2, 3, 4, 5)))
            found.append(self._conversation(size))
            left -= size
        return sorted(found, key=lambda conversation: conversation.at)

    def _conversation(self, size: int) -> Conversation:
        turns = tuple(self._turn(in_session=size > 1, first=place == 0) for place in range(size))
        at = self._rng.uniform(0, 0.9)
        return Conversation(at, turns, patient=self._rng.random() < 0.4)

    def _turn(self, *, in_session: bool, first: bool) -> Turn:
        rng = self._rng
        self._number += 1
        weights = [weight for weight, _ in self._kinds.values()]
        (make,) = rng.choices([make for _, make in self._kinds.values()], weights)
        turn = replace(make(self._number), followers=rng.choice((1, 1, 2)), repeated=rng.random() < 0.15)
        if rng.random() < 0.15:
            turn = replace(turn, cancel_after_s=rng.uniform(0, 3))
        if in_session:
            if not first and rng.random() < 0.2:
                turn = replace(turn, body={**turn.body, "if_busy": rng.choice(("interrupt", "reject"))})
            return replace(turn, via=rng.choice(("post", "post", "stream")))
        turn = replace(turn, via=rng.choice(("post", "post", "stream", "raw")))
        if rng.random() < 0.5:
            return turn
        body = {name: value for name, value in turn.body.items() if name != "message"}
        history = [{"role": "user", "content": "Before."}, {"role": "assistant", "content": "Yes."}]
        return replace(turn, body={**body, "messages": [*history, {"role": "user", "content": turn.body["message"]}]})

    def _make(self, kind: str, message: str, keys: tuple[str, ...] = (), **fields: Any) -> Turn:
        job_id = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        # Named, or a later turn would inherit the failing model of its session's first one.
        return Turn(job_id, kind, {"job_id": job_id, "message": message, "model": "demo", **fields}, keys=keys)

    def _words(self, number: int) -> Turn:
        count, pace = self._rng.randint(1, 40), self._rng.choice((0, 10, 40))
        return self._make("words", f"Question {number}. [words={count}][pace={pace}]")

    def _slow(self, number: int) -> Turn:
        count, pace = self._rng.randint(30, 60), self._rng.choice((60, 100))
        return self._make("slow", f"Question {number}. [words={count}][pace={pace}]")

    def _tools(self, number: int) -> Turn:
        return self._make("tools", f"Question {number}: what is {number} * 17? [pace=20]", tools=["calculator"])

    def _write(self, number: int) -> Turn:
        rounds: list[str] = []
        keys: list[str] = []
        for place in range(self._rng.randint(1, 3)):
            calls = []
            for side in range(self._rng.choice((1, 1, 2))):
                key = f"{number}-{place}-{side}"
                keys.append(key)
                tool = self._rng.choice(("record", "record_in_a_thread"))
                hold_ms = self._rng.choice((0, 200, 800))
                calls.append(f"[call:{tool} {json.dumps({'key': key, 'hold_ms': hold_ms})}]")
            rounds.append(f"[say:Round {place} of {number}. ]{''.join(calls)}")
        text = "[then]".join([*rounds, f"[say:All of {number} is written.]"])
        tools = ["record", "record_in_a_thread"]
        return self._make("write", f"Question {number}. {text}[pace=30]", tuple(keys), tools=tools)

    def _fails_always(self, number: int) -> Turn:
        turn = self._model(number, "fails always", FAILING_ALWAYS)
        # Its breaker lets one try at a time: it is to end within the run all the same.
        return replace(turn, body={**turn.body, "deadline_s": 30.0})

    def _model(self, number: int, kind: str, faults: tuple[str, ...]) -> Turn:
        model = FAULT_MODEL + self._rng.choice(faults)
        return self._make(kind, f"Question {number}. [words=20][pace=20][retry-after=1]", model=model)
