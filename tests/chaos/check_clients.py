"""What clients recorded, replayed: the right end, the right text, no character twice and none missing."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from schemas.job_event import TERMINAL_KINDS, EventId
from tests.chaos.evidence import Client, Evidence, Sitting
from tests.chaos.finding import Finding
from tests.chaos.folds import folded, response_text, shown, simply_folded
from tests.chaos.frames import Frame, frames

#: Faults that can keep the last pieces of an answer out of its log: then the terminal event alone is right.
LOSSY = ("redis", "worker", "database", "clock")
SLACK_US = 3_000_000


def saved_text(evidence: Evidence, job_id: str) -> str:
    """What SQL has of a job's answer: its assistant messages in their order, joined."""
    by_parent = {
        message["parent_id"]: message
        for message in evidence.messages.values()
        if message["job_id"] == job_id and message["role"] != "user"
    }
    text, parent = "", evidence.jobs[job_id]["user_message_id"]
    while (message := by_parent.pop(parent, None)) is not None:
        text += message["content"] if message["role"] == "assistant" else ""
        parent = message["id"]
    return text


def received(client: Client) -> list[Frame]:
    """Every frame of a client, in the order in which it came, those it had already included."""
    return [frame for sitting in client.sittings if sitting.status == 200 for frame in frames(sitting.body)]


def ends(evidence: Evidence) -> Finding:
    """Every client sees the end, and is never told that a job it follows is not there."""
    finding = Finding("clients that never saw the end")
    for client in evidence.clients:
        kinds = {frame.name for frame in received(client)}
        told_all = any(sitting.status == 204 for sitting in client.sittings)
        finding.require(client.done and (kinds & TERMINAL_KINDS or told_all), f"{_named(client)}: {sorted(kinds)}")
        bad = {sitting.status for sitting in client.sittings} - {0, 200, 204, 503}
        finding.require(not bad, f"{_named(client)} was answered {bad}")
        for sitting in client.sittings:
            if sitting.status == 204:
                known = evidence.jobs.get(client.job_id)
                last = EventId(known["epoch"], 1) if known else EventId(0, 0)
                at_end = sitting.cursor is not None and EventId.parse(sitting.cursor) >= last
                finding.require(at_end, f"{_named(client)} was told at {sitting.cursor} that there is nothing more")
    return finding


def folds(evidence: Evidence) -> Finding:
    """Both folds of what a client received give the text that SQL has."""
    finding = Finding("folds not equal to the saved reply")
    for client in evidence.clients:
        found = received(client)
        if client.job_id not in evidence.jobs or not any(frame.name in TERMINAL_KINDS for frame in found):
            continue
        saved = saved_text(evidence, client.job_id)
        for way, text in (("fold", folded(found)), ("simple fold", simply_folded(found))):
            finding.require(text == saved, f"{_named(client)}: {way} {_short(text)}, saved {_short(saved)}")
    return finding


def order(evidence: Evidence) -> Finding:
    """Nothing comes twice or too early in one stream, nothing is left out within an epoch, and an id is one event."""
    finding = Finding("events missing, repeated or out of order")
    meanings: dict[tuple[str, EventId], bytes] = {}
    for client in evidence.clients:
        seen: set[EventId] = set()
        for sitting in client.sittings:
            if sitting.status != 200:
                continue
            came = frames(sitting.body)
            finding.require(not _gaps(sitting, came), f"{_named(client)}: {_gaps(sitting, came)}")
            for frame in came:
                seen.add(frame.id)
                known = meanings.setdefault((client.job_id, frame.id), frame.data)
                finding.require(known == frame.data, f"{_named(client)}: {frame.id} is two events")
                right = frame.event["kind"] == frame.name and frame.event["job_id"] == client.job_id
                finding.require(right, f"{_named(client)}: {frame.id} is not what its frame says")
        missing = _missing(seen)
        finding.require(not missing, f"{_named(client)} never got {missing}")
    return finding


def terminals(evidence: Evidence) -> Finding:
    """Transitions reach clients as SQL has them, byte for byte."""
    finding = Finding("clients' transitions not those of SQL")
    for client in evidence.clients:
        steps = {step["epoch"]: step["event"].encode() for step in evidence.transitions.get(client.job_id, [])}
        for frame in received(client):
            if frame.id.seq == 1:
                finding.require(steps.get(frame.id.epoch) == frame.data, f"{_named(client)}: {frame.id} {frame.name}")
            elif frame.name in TERMINAL_KINDS:
                finding.require(False, f"{_named(client)}: {frame.id} ends a job and opens no epoch")
    return finding


def before_the_end(evidence: Evidence) -> Finding:
    """Before `final` a client shows the beginning of the answer, and all of it unless something kept it away."""
    finding = Finding("characters wrong before the end")
    for client in evidence.clients:
        events = dict(sorted({frame.id: frame.event for frame in received(client)}.items()))
        final = next((event for event in events.values() if event["kind"] == "final"), None)
        if final is None:
            continue
        until = list(events.values()).index(final)
        on_screen, answer = shown(list(events.values())[:until]), response_text(final)
        finding.require(answer.startswith(on_screen), f"{_named(client)}: {_short(on_screen)} {_short(answer)}")
        if not _disturbed(evidence, client.job_id):
            finding.require(on_screen == answer, f"{_named(client)} showed {len(on_screen)} of {len(answer)}")
    return finding


def _disturbed(evidence: Evidence, job_id: str) -> bool:
    """Whether anything happened from its last claim on that may have kept pieces out of the log."""
    claims = [step["at"] for step in evidence.transitions[job_id] if step["kind"] == "claim"]
    ended = evidence.transitions[job_id][-1]["at"]
    return not claims or bool(evidence.timeline.overlapping(claims[-1], ended, *LOSSY, slack=SLACK_US))


def _gaps(sitting: Sitting, came: list[Frame]) -> list[str]:
    cursor = EventId(0, 0) if sitting.cursor is None else EventId.parse(sitting.cursor)
    ids = [cursor, *(frame.id for frame in came)]
    wrong = []
    for earlier, later in pairwise(ids):
        follows = later.seq == earlier.seq + 1 if later.epoch == earlier.epoch else later.seq == 1
        if later <= earlier or not follows:
            wrong.append(f"{later} after {earlier}")
    return wrong


def _missing(seen: set[EventId]) -> list[str]:
    """Within an epoch there is no gap, over all of a client's connections."""
    by_epoch: dict[int, set[int]] = defaultdict(set)
    for one in seen:
        by_epoch[one.epoch].add(one.seq)
    return [f"{epoch}-{seq}" for epoch, seqs in by_epoch.items() for seq in range(1, max(seqs) + 1) if seq not in seqs]


def _named(client: Client) -> str:
    return f"{client.name} of {client.job_id}"


def _short(text: str) -> str:
    return repr(text if len(text) < 90 else f"{text[:40]} … {text[-40:]} ({len(text)})")
