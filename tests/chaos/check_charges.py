"""Every attempt that was charged had a cause of its own: no deploy and no outage of the database costs a retry."""

from __future__ import annotations

from tests.chaos.evidence import Evidence, Row
from tests.chaos.finding import Finding
from tests.chaos.happenings import pid_of
from tests.chaos.mix import FAULT_MODEL

#: What a model's server can be blamed for.
MODEL_CODES = frozenset(
    {
        "authentication",
        "bad_request",
        "connection",
        "empty_stream",
        "insufficient_quota",
        "invalid_tool_call",
        "no_answer",
        "provider_error",
        "rate_limited",
        "timeout",
        "too_long",
        "truncated",
        "unknown_tool",
    }
)
SLACK_US = 2_000_000
DEPLOYS = "failures charged to deploys"
DATABASE = "failures charged to a database outage"
NOBODY = "failures charged without a cause"


def charges(evidence: Evidence) -> list[Finding]:
    """One finding for deploys, one for the database, one for what has no cause at all."""
    findings = {rule: Finding(rule) for rule in (DEPLOYS, DATABASE, NOBODY)}
    for job_id, made in evidence.attempts.items():
        for attempt in made:
            for finding in findings.values():
                finding.checked += 1
            if attempt["ending"] not in ("fail", "expire") or _has_cause(evidence, job_id, attempt):
                continue
            if (job_id, attempt["attempt"]) not in evidence.begun and attempt["ending"] == "expire":
                # Nobody knew of it: a claim whose answer was lost must run out, and counts as a lost worker's.
                findings[DATABASE].noted.append(f"the answer to the claim of {_told(attempt)} was lost")
                continue
            findings[_blamed(evidence, attempt)].wrong.append(_told(attempt))
    return list(findings.values())


def _has_cause(evidence: Evidence, job_id: str, attempt: Row) -> bool:
    begin, end = attempt["started_at"], attempt["ended_at"]
    pid = pid_of(attempt["worker"])
    if attempt["ending"] == "expire":
        return any(pid in one.victims and one.begin <= end + SLACK_US for one in evidence.timeline.happenings)
    code = (attempt["error"] or {}).get("code")
    if code not in MODEL_CODES:
        return False
    if str(evidence.jobs[job_id]["model"]).startswith(FAULT_MODEL):
        return True
    if code == "timeout" and any(pid in one.victims for one in evidence.timeline.overlapping(begin, end)):
        return True
    return bool(evidence.timeline.overlapping(begin, end, "model", slack=SLACK_US))


def _blamed(evidence: Evidence, attempt: Row) -> str:
    happened = evidence.timeline.overlapping(attempt["started_at"], attempt["ended_at"], slack=SLACK_US)
    if any(pid_of(attempt["worker"]) in one.told for one in happened):
        return DEPLOYS
    if any(one.family in ("database", "clock") for one in happened):
        return DATABASE
    return NOBODY


def _told(attempt: Row) -> str:
    code = (attempt["error"] or {}).get("code")
    return f"{attempt['job_id']} attempt {attempt['attempt']} on {attempt['worker']}: {attempt['ending']} ({code})"
