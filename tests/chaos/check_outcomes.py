"""Accepted jobs: none is lost, each has one outcome, and what was asked again or to be stopped was heard."""

from __future__ import annotations

from collections import Counter

import orjson

from schemas.job_event import TERMINAL_KINDS
from storage.jobs.views import ENDED_STATUSES
from tests.chaos.evidence import Evidence, Row
from tests.chaos.finding import Finding

#: What a terminal event makes of its job.
STATUS = {"final": "finished", "failed": "dead", "cancelled": "cancelled"}
#: What may still become of an attempt of a job that is to be stopped.
AFTER_CANCEL = frozenset({"cancel", "finish", "rebuild"})


def lost(evidence: Evidence) -> Finding:
    """Every job that a producer was told of, or that SQL has, has ended."""
    finding = Finding("accepted jobs lost")
    for asked in evidence.asked.values():
        if asked.accepted:
            finding.require(asked.turn.job_id in evidence.jobs, f"{asked.turn.job_id} was accepted and is not there")
    for job in evidence.jobs.values():
        finding.require(job["status"] in ENDED_STATUSES, f"{job['id']} is {job['status']} for ever")
    return finding


def double_outcomes(evidence: Evidence) -> Finding:
    """A job has one terminal transition since it was last put back, and it is its newest."""
    finding = Finding("double outcomes")
    for job_id, job in evidence.jobs.items():
        steps = evidence.transitions.get(job_id, [])
        epochs = [step["epoch"] for step in steps]
        finding.require(epochs == list(range(job["epoch"] + 1)), f"{job_id} has the epochs {epochs}")
        since_redrive: list[Row] = []
        for step in steps:
            since_redrive = [step] if step["kind"] == "redrive" else [*since_redrive, step]
        ends = [step for step in since_redrive if kind_of(step) in TERMINAL_KINDS]
        if job["status"] not in ENDED_STATUSES:
            continue
        finding.require(len(ends) == 1, f"{job_id} ended {len(ends)} times: {[step['kind'] for step in steps]}")
        if ends:
            right = ends[-1] is steps[-1] and STATUS[kind_of(ends[-1])] == job["status"]
            finding.require(right, f"{job_id} is {job['status']}, its transitions say {[s['kind'] for s in steps]}")
        letters = [one for one in evidence.dead_letters.get(job_id, []) if one["resolution"] is None]
        finding.require(len(letters) == (job["status"] == "dead"), f"{job_id} has {len(letters)} dead letters")
    return finding


def repeats(evidence: Evidence) -> Finding:
    """The same request again is the same job; another one under its id is refused."""
    finding = Finding("requests made twice of one")
    for asked in evidence.asked.values():
        if asked.accepted and asked.repeat is not None:
            finding.require(asked.repeat == 200, f"{asked.turn.job_id} sent again was answered {asked.repeat}")
        if asked.accepted and asked.other_body is not None:
            finding.require(asked.other_body == 422, f"another body for {asked.turn.job_id}: {asked.other_body}")
    questions = Counter(
        message["job_id"] for message in evidence.messages.values() if message["role"] == "user" and message["job_id"]
    )
    for job_id, count in questions.items():
        finding.require(count == 1, f"the text of {job_id} is stored {count} times")
    return finding


def cancels(evidence: Evidence) -> Finding:
    """A job that was to be stopped makes no new attempt once that is acknowledged."""
    finding = Finding("cancelled jobs that went on")
    for asked in evidence.asked.values():
        if asked.cancelled_in is None:
            continue
        steps = evidence.transitions.get(asked.turn.job_id, [])
        later = [step["kind"] for step in steps if step["epoch"] > asked.cancelled_in]
        finding.require(AFTER_CANCEL.issuperset(later), f"{asked.turn.job_id} then did {later}")
    return finding


def effects(evidence: Evidence) -> Finding:
    """A write tool does its work at most once for each call, and what an answer says was done was done."""
    finding = Finding("write effects repeated or invented")
    for (job_id, key), count in evidence.effects.items():
        finding.require(count == 1, f"{job_id} wrote {key} {count} times")
    for message in evidence.messages.values():
        said = message["content"].removesuffix(" is recorded")
        if message["role"] == "tool" and said != message["content"]:
            finding.require(evidence.effects[message["job_id"], said], f"{message['job_id']} says it wrote {said}")
    for asked in evidence.asked.values():
        unasked = {key for job_id, key in evidence.effects if job_id == asked.turn.job_id} - set(asked.turn.keys)
        finding.require(not unasked, f"{asked.turn.job_id} wrote {unasked} unasked")
    return finding


def rules(evidence: Evidence) -> Finding:
    """The rows keep the rules of the tables: nothing is half written."""
    return Finding("rows half written or against the rules", len(evidence.jobs), list(evidence.broken_rules))


def manners(evidence: Evidence) -> Finding:
    """Processes end when they are told to and not before; failures are told of by answers that mean something."""
    checked = len(evidence.timeline.happenings)
    return Finding("processes and answers out of order", checked, [*evidence.unruly, *evidence.bad_answers])


def kind_of(step: Row) -> str:
    """The kind of the event that a transition shows."""
    return str(orjson.loads(step["event"])["kind"])
