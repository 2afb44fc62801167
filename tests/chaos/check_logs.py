"""The logs that Redis still has: in order, of SQL's own bytes, and closed by the terminal event."""

from __future__ import annotations

from itertools import pairwise

from schemas.job_event import EventId, is_terminal
from tests.chaos.check_clients import saved_text
from tests.chaos.evidence import Evidence, LogLine
from tests.chaos.finding import Finding
from tests.chaos.folds import folded, simply_folded
from tests.chaos.frames import Frame


def logs(evidence: Evidence) -> Finding:
    """A log says what SQL says; its end is the last entry, and there if Redis has forgotten nothing since."""
    finding = Finding("logs that are not what SQL says")
    for job_id, lines in evidence.logs.items():
        if job_id not in evidence.jobs:
            finding.require(False, f"{job_id} has a log and no row")
            continue
        finding.require(_in_order(lines), f"{job_id}: {[str(line.id) for line in lines]}")
        steps = {step["epoch"]: step["event"].encode() for step in evidence.transitions[job_id]}
        for line in lines:
            opens = line.id.seq == 1
            finding.require(not opens or steps.get(line.id.epoch) == line.event, f"{job_id}: {line.id} is not SQL's")
            finding.require(line.terminal == is_terminal(line.event), f"{job_id}: {line.id} is marked wrongly")
            last_of_epoch = (
                line is lines[-1] or not line.terminal or lines[lines.index(line) + 1].id.epoch > line.id.epoch
            )
            finding.require(last_of_epoch, f"{job_id}: {line.id} ends it and is not the last")
        job = evidence.jobs[job_id]
        if job["ended_at"] is not None and job["ended_at"] > evidence.logs_since:
            finding.require(lines[-1].id == EventId(job["epoch"], 1), f"{job_id}: its log ends at {lines[-1].id}")
        if lines[-1].terminal:
            told = [Frame(line.id, "", line.event) for line in lines]
            saved = saved_text(evidence, job_id)
            finding.require(
                folded(told) == simply_folded(told) == saved, f"{job_id}: the fold of its log is not its reply"
            )
    return finding


def _in_order(lines: list[LogLine]) -> bool:
    """Ids grow, and within an epoch there is no gap."""
    return all(
        later.id.seq == earlier.id.seq + 1 if later.id.epoch == earlier.id.epoch else later.id > earlier.id
        for earlier, later in pairwise(lines)
    ) and all(later.id.seq == 1 for earlier, later in pairwise(lines) if later.id.epoch != earlier.id.epoch)
