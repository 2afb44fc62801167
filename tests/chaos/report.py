"""The table of a run: what was done, what became of the jobs, what the checks found."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from tests.chaos.run import Outcome

#: How much is told of each rule that was broken.
EXAMPLES = 8


def show(outcomes: list[Outcome], command: str, console: Console) -> None:
    """Print one table for all databases, then the examples, then how to run it again."""
    table = Table(title="chaos", title_justify="left")
    table.add_column("")
    for outcome in outcomes:
        table.add_column(outcome.dialect, justify="right")
    for name in sorted({name for outcome in outcomes for name in outcome.made}):
        table.add_row(name, *(str(outcome.made[name]) for outcome in outcomes))
    table.add_section()
    numbers = [_numbers(outcome) for outcome in outcomes]
    for name in dict.fromkeys(name for one in numbers for name in one):
        table.add_row(name, *(str(one[name]) for one in numbers))
    table.add_section()
    for place, finding in enumerate(outcomes[0].findings):
        found = [outcome.findings[place] for outcome in outcomes]
        table.add_row(finding.rule, *(f"{len(one.wrong)} of {one.checked}" for one in found))
    console.print(table)
    for outcome in outcomes:
        _show_examples(outcome, console)
    console.print(f"again: {command}", soft_wrap=True)


def _numbers(outcome: Outcome) -> Counter[str]:
    """Counts of jobs and clients; Counter, so that what one database has and the other has not is 0."""
    evidence = outcome.evidence
    statuses = Counter(job["status"] for job in evidence.jobs.values())
    endings = Counter(attempt["ending"] for made in evidence.attempts.values() for attempt in made)
    kinds = Counter(step["kind"] for steps in evidence.transitions.values() for step in steps)
    return Counter(
        {
            "jobs accepted": len(evidence.jobs),
            "jobs refused": sum(asked.refused for asked in evidence.asked.values()),
            "finished": statuses["finished"],
            "dead": statuses["dead"],
            "cancelled": statuses["cancelled"],
            "attempts": sum(endings.values()),
            "failed": endings["fail"],
            "expired": endings["expire"],
            "released": endings["release"],
            "deferred": endings["defer"],
            "lapsed": kinds["lapse"],
            "logs rebuilt": kinds["rebuild"],
            "clients": len(evidence.clients),
            "connections": sum(len(client.sittings) for client in evidence.clients),
            "claims whose answer was lost": sum(len(finding.noted) for finding in outcome.findings),
        }
    )


def _show_examples(outcome: Outcome, console: Console) -> None:
    for finding in outcome.findings:
        for text in finding.wrong[:EXAMPLES]:
            console.print(f"{outcome.dialect}: {finding.rule}: {text}", markup=False, soft_wrap=True)
        if len(finding.wrong) > EXAMPLES:
            console.print(f"{outcome.dialect}: {finding.rule}: and {len(finding.wrong) - EXAMPLES} more")
