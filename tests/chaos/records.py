"""A small run as it should be, made by hand: what the tests of the checker doctor."""

from __future__ import annotations

from collections import Counter
from typing import Any

from schemas.job_event import EventId, encode_event, is_terminal
from tests.chaos.evidence import Asked, Client, Evidence, LogLine, Row, Sitting
from tests.chaos.happenings import Happening, Timeline, pid_of
from tests.chaos.mix import Turn

#: The first turn: answered with a write, at the second attempt.
FIRST = "00000000-0000-4000-8000-000000000001"
#: The second turn of the same session: asked again, and cancelled while it ran.
SECOND = "00000000-0000-4000-8000-000000000002"
#: Another session's: dead.
DEAD = "00000000-0000-4000-8000-000000000003"
SESSION, OTHER_SESSION = "session", "other session"
KILLED, WELL = "vm-11-aaaaaa", "vm-12-bbbbbb"
KEY = "1-0-0"
WORDS = ("One ", "two ", "three.")

_REPLY: list[dict[str, Any]] = [
    {"role": "assistant", "content": "One ", "tool_calls": [{"id": "c", "name": "record", "args": {}}]},
    {"role": "tool", "content": f"{KEY} is recorded", "tool_call_id": "c"},
    {"role": "assistant", "content": "two three."},
]
_ERROR = {"code": "bad_request", "message": "no", "retryable": False}


class Story:
    """Tells what happens to jobs, step by step; every step is a tenth of a second."""

    def __init__(self) -> None:
        self.evidence = Evidence()
        self.now = 1_000_000_000
        self.events: dict[str, list[tuple[EventId, bytes]]] = {}

    def accept(self, job_id: str, session_id: str, place: int, **turn: Any) -> None:
        evidence = self.evidence
        body = {"job_id": job_id, "message": "Hm?", "model": turn.pop("model", "demo")}
        asked = Asked(Turn(job_id, "words", body, **turn), conversation=1, place=place, in_session=True, answers=[202])
        evidence.asked[job_id] = asked
        question = self._message(f"q-{job_id}", session_id, None, "user", "Hm?", job_id, placed=False)
        evidence.jobs[job_id] = {
            "id": job_id,
            "session_id": session_id,
            "session_seq": place + 1,
            "status": "queued",
            "epoch": -1,
            "user_message_id": question["id"],
            "model": body["model"],
            "ended_at": None,
        }
        evidence.sessions.setdefault(session_id, {"id": session_id, "active_leaf": None})
        self.step(job_id, "accept", "queued", queue="chat", session_id=session_id)

    def claim(self, job_id: str, worker: str) -> None:
        job = self.evidence.jobs[job_id]
        job["status"] = "running"
        question = self.evidence.messages[job["user_message_id"]]
        if not question["placed"]:
            question.update(placed=True, parent_id=self.evidence.sessions[job["session_id"]]["active_leaf"])
        made = self.evidence.attempts.setdefault(job_id, [])
        self.step(job_id, "claim", "started", attempt=len(made) + 1, worker=worker)
        made.append(
            {
                "job_id": job_id,
                "attempt": len(made) + 1,
                "worker": worker,
                "started_at": self.now,
                "ended_at": None,
                "ending": None,
                "error": None,
            }
        )
        self.evidence.begun.add((job_id, len(made)))

    def say(self, job_id: str, *texts: str) -> None:
        for text in texts:
            epoch, seq = self.events[job_id][-1][0]
            self.events[job_id].append((EventId(epoch, seq + 1), encode_event("text", job_id, self.now, text=text)))

    def end(self, job_id: str, kind: str, event_kind: str, status: str, **fields: Any) -> None:
        """End the running attempt; the job too, if the event is terminal."""
        job = self.evidence.jobs[job_id]
        job["status"] = status
        parent = job["user_message_id"]
        for place, message in enumerate(fields.get("response", [])):
            new = self._message(
                f"a{place}-{job_id}", job["session_id"], parent, message["role"], message["content"], job_id
            )
            parent = self.evidence.sessions[job["session_id"]]["active_leaf"] = new["id"]
        self.step(job_id, kind, event_kind, **fields)
        self.evidence.attempts[job_id][-1].update(ended_at=self.now, ending=kind, error=fields.get("error"))
        if status in ("finished", "dead", "cancelled"):
            job["ended_at"] = self.now
        if status == "dead":
            self.evidence.dead_letters[job_id] = [{"job_id": job_id, "resolution": None}]

    def step(self, job_id: str, kind: str, event_kind: str, **fields: Any) -> None:
        self.now += 100_000
        job = self.evidence.jobs[job_id]
        job["epoch"] += 1
        event = encode_event(event_kind, job_id, self.now, **fields)
        position = sum(map(len, self.evidence.transitions.values())) + 1
        row = {"job_id": job_id, "epoch": job["epoch"], "kind": kind, "at": self.now, "event": event.decode()}
        self.evidence.transitions.setdefault(job_id, []).append({**row, "position": position})
        self.events.setdefault(job_id, []).append((EventId(job["epoch"], 1), event))

    def finish(self) -> Evidence:
        """Let every log hold everything, and two clients follow each job, one of them in two sittings."""
        for job_id, events in self.events.items():
            self.evidence.logs[job_id] = [LogLine(at, event, is_terminal(event)) for at, event in events]
            whole = Client(job_id, "whole", [Sitting(None, 200, stream(events))], done=True)
            middle = len(events) // 2
            last = str(events[middle - 1][0])
            parts = [
                Sitting(None, 200, stream(events[:middle]) + b"id: 1-"),
                Sitting(last, 0),
                Sitting(last, 200, b": following\n\n" + stream(events[middle:])),
                Sitting(str(events[-1][0]), 204),
            ]
            self.evidence.clients += [whole, Client(job_id, "parts", parts, done=True)]
        return self.evidence

    def _message(
        self, id_: str, session_id: str, parent: str | None, role: str, content: str, job_id: str, placed: bool = True
    ) -> Row:
        row: Row = {"id": id_, "session_id": session_id, "parent_id": parent, "placed": placed}
        self.evidence.messages[id_] = {**row, "role": role, "content": content, "job_id": job_id}
        return self.evidence.messages[id_]


def stream(events: list[tuple[EventId, bytes]]) -> bytes:
    """Events as the gateway sends them."""
    return b"".join(
        b"id: %s\nevent: %s\ndata: %s\n\n" % (str(at).encode(), event.split(b'"', 4)[3], event) for at, event in events
    )


def good_run() -> Evidence:
    """Three jobs in two sessions, a killed worker and a restarted one."""
    story = Story()
    story.accept(FIRST, SESSION, 0, keys=(KEY,))
    story.accept(SECOND, SESSION, 1, cancel_after_s=1.0, repeated=True)
    story.accept(DEAD, OTHER_SESSION, 0, model="demo-fault-status-400")
    story.claim(FIRST, KILLED)
    story.say(FIRST, "One ")
    killed = Happening(
        "kill_worker", "worker", "worker0", story.now, story.now + 10, victims=frozenset({pid_of(KILLED)})
    )
    story.end(FIRST, "expire", "retrying", "queued", error={**_ERROR, "code": "worker_lost"}, retry_at="later")
    # Long after: nothing of it excuses what follows.
    story.now += 60_000_000
    story.claim(FIRST, WELL)
    story.say(FIRST, *WORDS)
    story.end(FIRST, "finish", "final", "finished", outcome="ok", response=_REPLY, usage=None, message_ids=[])
    story.claim(SECOND, WELL)
    story.say(SECOND, "Well, ")
    story.evidence.asked[SECOND].cancelled_in = story.evidence.jobs[SECOND]["epoch"]
    partial = [{"role": "assistant", "content": "Well, "}]
    story.end(SECOND, "cancel", "cancelled", "cancelled", reason="enough", response=partial, message_ids=[])
    story.claim(DEAD, WELL)
    story.end(DEAD, "fail", "failed", "dead", error=_ERROR, dead_letter_id="letter")
    evidence = story.finish()
    evidence.timeline = Timeline([killed])
    evidence.effects = Counter({(FIRST, KEY): 1})
    evidence.asked[SECOND].repeat, evidence.asked[SECOND].other_body = 200, 422
    return evidence
