"""Options that commands about many things share: which of them, how many, how they are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.failure import WrongUsage

if TYPE_CHECKING:
    from collections.abc import Sequence

AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]
Limit = Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")]
Queue = Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this queue.")]
Framework = Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this agent framework.")]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="Only those that asked for this model.")]
Since = Annotated[
    str | None, typer.Option(metavar="WHEN", help="Only those from then on: 2h, 7d, or 2026-11-30T22:00Z.")
]
Until = Annotated[str | None, typer.Option(metavar="WHEN", help="Only those before then.")]
Everything = Annotated[bool, typer.Option("--all", help="All of them: for when there is no filter.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many it would be.")]
Rate = Annotated[float | None, typer.Option(metavar="N", min=0.001, max=10_000, help="At most so many a second.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def given(**options: Any) -> dict[str, Any]:
    """The options that are given. Raises WrongUsage for a time that is none."""
    from schemas.moment import moment_us

    filters = {name: value for name, value in options.items() if value is not None}
    for name in ("since", "until"):
        if name in filters:
            try:
                moment_us(filters[name], 0)
            except ValueError as error:
                raise WrongUsage(f"--{name}: {error}") from None
    return filters


def either(what: str, ids: Sequence[str], filters: dict[str, Any], everything: bool) -> None:
    """Raise WrongUsage unless exactly one of these says what is meant."""
    if sum(map(bool, (ids, filters, everything))) != 1:
        raise WrongUsage(f"say which {what}: ids, or a filter such as --queue, or --all")
