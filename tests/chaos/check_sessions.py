"""Order within sessions: one turn at a time, in order of acceptance, each below the answer before it.

Positions of transitions tell what came first, and no clock: clocks are stepped here.
"""

from __future__ import annotations

from collections import defaultdict

from tests.chaos.evidence import Evidence, Row
from tests.chaos.finding import Finding


def order(evidence: Evidence) -> Finding:
    """Turns take their places as they were sent, run one after the other, and hang together as a conversation."""
    finding = Finding("order violations in sessions")
    by_session: dict[str, list[Row]] = defaultdict(list)
    for job in evidence.jobs.values():
        by_session[job["session_id"]].append(job)
    for session_id, found in by_session.items():
        turns = sorted(found, key=lambda job: job["session_seq"])
        _check_places(evidence, turns, finding)
        _check_turns(evidence, turns, finding)
        _check_branch(evidence, session_id, turns, finding)
    return finding


def _check_places(evidence: Evidence, turns: list[Row], finding: Finding) -> None:
    sent = [evidence.asked[job["id"]].place for job in turns if job["id"] in evidence.asked]
    finding.require(sent == sorted(sent), f"sent as {sent}, placed {[job['session_seq'] for job in turns]}")


def _check_turns(evidence: Evidence, turns: list[Row], finding: Finding) -> None:
    """No attempt begins before every earlier turn has ended; attempts of one job do not overlap."""
    ended_before: Row | None = None
    for job in turns:
        steps = evidence.transitions.get(job["id"], [])
        claims = [step["position"] for step in steps if step["kind"] == "claim"]
        if claims and ended_before is not None:
            finding.require(claims[0] > ended_before["position"], f"{job['id']} ran beside {ended_before['job_id']}")
        if steps and (ended_before is None or steps[-1]["position"] > ended_before["position"]):
            ended_before = steps[-1]
        running = False
        for step in steps:
            if step["kind"] == "claim":
                finding.require(not running, f"{job['id']} was claimed while it ran")
                running = True
            elif step["kind"] not in ("rebuild", "accept"):
                running = False


def _check_branch(evidence: Evidence, session_id: str, turns: list[Row], finding: Finding) -> None:
    """A user's message hangs below the last saved answer before it, and the answer below the message."""
    leaf = _brought_along(evidence, session_id)
    for job in turns:
        question = evidence.messages[job["user_message_id"]]
        if question["placed"] and any(step["kind"] == "claim" for step in evidence.transitions.get(job["id"], [])):
            finding.require(question["parent_id"] == leaf, f"{job['id']} asks below {question['parent_id']}")
        said = [
            message
            for message in evidence.messages.values()
            if message["job_id"] == job["id"] and message["role"] != "user"
        ]
        parents = {message["parent_id"]: message for message in said}
        finding.require(len(parents) == len(said), f"{job['id']} has two answers in one place")
        at, chained = question["id"], 0
        while (message := parents.get(at)) is not None and chained <= len(said):
            at, chained = message["id"], chained + 1
        finding.require(chained == len(said), f"{job['id']} has messages beside its answer")
        leaf = at if said else leaf
    active = evidence.sessions[session_id]["active_leaf"]
    finding.require(active == leaf, f"session {session_id} stands at {active}, its last answer is {leaf}")


def _brought_along(evidence: Evidence, session_id: str) -> str | None:
    """The last message of the history that a stateless job brings along, which no job has made."""
    brought = [one for one in evidence.messages.values() if one["session_id"] == session_id and one["job_id"] is None]
    parents = {one["parent_id"] for one in brought}
    return next((one["id"] for one in brought if one["id"] not in parents), None)
