"""All checks, in the order in which they are told."""

from __future__ import annotations

from tests.chaos import check_charges, check_clients, check_logs, check_outcomes, check_sessions
from tests.chaos.evidence import Evidence
from tests.chaos.finding import Finding


def check_all(evidence: Evidence) -> list[Finding]:
    """What every check has to say about a run."""
    return [
        check_outcomes.lost(evidence),
        check_outcomes.double_outcomes(evidence),
        check_clients.ends(evidence),
        check_clients.folds(evidence),
        check_clients.before_the_end(evidence),
        check_clients.order(evidence),
        check_clients.terminals(evidence),
        check_logs.logs(evidence),
        check_outcomes.effects(evidence),
        *check_charges.charges(evidence),
        check_sessions.order(evidence),
        check_outcomes.repeats(evidence),
        check_outcomes.cancels(evidence),
        check_outcomes.rules(evidence),
        check_outcomes.manners(evidence),
    ]


__all__ = ["Finding", "check_all"]
