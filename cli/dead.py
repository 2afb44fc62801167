"""`chatmill dead`: jobs that failed for good, and what is decided about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.failure import WrongUsage
from cli.list_options import (
    AsJson,
    AsJsonLines,
    DryRun,
    Everything,
    Framework,
    Limit,
    Model,
    Queue,
    Rate,
    Since,
    Until,
    Yes,
    either,
    given,
)
from cli.options import Options, checked_id
from cli.run import run

if TYPE_CHECKING:
    from collections.abc import Sequence

LetterId = Annotated[str, typer.Argument(metavar="ID", help="The dead letter's id.")]
LetterIds = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Dead letters.")]
Code = Annotated[str | None, typer.Option(metavar="CODE", help="Only those that died of this error code.")]
State = Annotated[str, typer.Option(metavar="STATE", help="lying (nobody has decided), redriven or discarded.")]

app = typer.Typer(name="dead", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def dead() -> None:
    """Dead letters: jobs that failed for good, kept until somebody decides."""


@app.command("list")
def list_letters(
    context: typer.Context,
    queue: Queue = None,
    code: Code = None,
    framework: Framework = None,
    model: Model = None,
    since: Since = None,
    until: Until = None,
    state: State = "lying",
    limit: Limit = 20,
    as_json: AsJsonLines = False,
) -> None:
    """List the dead letters, the newest first."""
    filters = given(queue=queue, error_code=code, framework=framework, model=model, since=since, until=until)
    run(_list(context.obj, {**filters, "state": state}, limit, as_json))


@app.command()
def show(context: typer.Context, letter: LetterId, as_json: AsJson = False) -> None:
    """Show one: the request, and every attempt with its error and output."""
    run(_show(context.obj, checked_id(letter, "dead letter"), as_json))


@app.command()
def redrive(
    context: typer.Context,
    letters: LetterIds = None,
    queue: Queue = None,
    code: Code = None,
    framework: Framework = None,
    model: Model = None,
    since: Since = None,
    until: Until = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    rate: Rate = None,
    as_json: AsJson = False,
) -> None:
    """Have the jobs answered after all: by ids, or all that meet a filter.

    The last line says what was done. Ctrl-C stops what is not done yet.
    """
    filters = given(queue=queue, error_code=code, framework=framework, model=model, since=since, until=until)
    _decide(context.obj, "redrive", letters or [], filters, everything, dry_run, rate, as_json, asks=False)


@app.command()
def discard(
    context: typer.Context,
    letters: LetterIds = None,
    queue: Queue = None,
    code: Code = None,
    framework: Framework = None,
    model: Model = None,
    since: Since = None,
    until: Until = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    rate: Rate = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Give the jobs up: by ids, or all that meet a filter. Asks if they are many.

    The last line says what was done. Ctrl-C stops what is not done yet.
    """
    filters = given(queue=queue, error_code=code, framework=framework, model=model, since=since, until=until)
    _decide(context.obj, "discard", letters or [], filters, everything, dry_run, rate, as_json, asks=not yes)


def _decide(
    options: Options,
    verb: str,
    letters: Sequence[str],
    filters: dict[str, Any],
    everything: bool,
    dry_run: bool,
    rate: float | None,
    as_json: bool,
    *,
    asks: bool,
) -> None:
    from cli.bulk_action import DONE, BulkAction
    from cli.confirm import confirm
    from cli.one_by_one import one_by_one

    either("dead letters", letters, filters, everything)
    if letters:
        ids = [checked_id(letter, "dead letter") for letter in letters]
        if dry_run or rate is not None:
            raise WrongUsage("--dry-run and --rate go with a filter or --all")
        if asks and len(ids) > 1:
            confirm(f"{verb} {len(ids)} dead letters?")
        run(one_by_one(options, f"/v1/dead-letters/{{}}/{verb}", ids, DONE[verb], as_json))
    body = {**(filters or {"all": True}), **({"rate": rate} if rate is not None else {})}
    action = BulkAction(options, f"/v1/dead-letters/{verb}", body, "dead letters", verb, as_json)
    action.perform(dry_run=dry_run, asks=asks)


async def _list(options: Options, filters: dict[str, Any], limit: int, as_json: bool) -> None:
    from cli.screen import Screen
    from cli.times import local_time

    async with options.client() as client:
        found = await client.items("/v1/dead-letters", limit=limit, **filters)
    screen = Screen()
    if as_json:
        for letter in found:
            screen.json(letter)
    elif found:
        rows = [
            (
                letter["id"],
                letter["queue"],
                letter["model"] or "",
                local_time(letter["created_at"]),
                letter["error"]["code"],
                letter["error"]["message"],
            )
            for letter in found
        ]
        screen.table(("dead letter", "queue", "model", "died", "code", "error"), rows)
    else:
        screen.note("[there are no such dead letters]")


async def _show(options: Options, letter_id: str, as_json: bool) -> None:
    from cli.dead_view import show_letter
    from cli.screen import Screen

    async with options.client() as client:
        letter = await client.get(f"/v1/dead-letters/{letter_id}")
    screen = Screen()
    if as_json:
        screen.json(letter)
    else:
        show_letter(screen, letter)
