"""`chatmill bulk`: what is being done to many things at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.list_options import AsJson, AsJsonLines, Limit
from cli.options import Options, checked_id
from cli.run import run

if TYPE_CHECKING:
    from cli.screen import Screen

RunId = Annotated[str, typer.Argument(metavar="ID", help="The bulk run's id.")]

app = typer.Typer(name="bulk", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def bulk() -> None:
    """Runs that redrive, discard or cancel many things: how far they are."""


@app.command("list")
def list_runs(
    context: typer.Context,
    state: Annotated[str | None, typer.Option(metavar="STATE", help="Only running, finished or aborted ones.")] = None,
    limit: Limit = 20,
    as_json: AsJsonLines = False,
) -> None:
    """List the bulk runs, the newest first."""
    run(_list(context.obj, state, limit, as_json))


@app.command()
def show(
    context: typer.Context,
    bulk_run: RunId,
    follow: Annotated[bool, typer.Option("--follow", help="Watch it to its end; Ctrl-C stops it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one bulk run."""
    run(_show(context.obj, checked_id(bulk_run, "bulk run"), follow, as_json))


@app.command()
def abort(context: typer.Context, bulk_run: RunId, as_json: AsJson = False) -> None:
    """Stop a bulk run. What it has done stays done."""
    run(_abort(context.obj, checked_id(bulk_run, "bulk run"), as_json))


async def _list(options: Options, state: str | None, limit: int, as_json: bool) -> None:
    from cli.screen import Screen
    from cli.times import local_time

    filters = {"state": state} if state else {}
    async with options.client() as client:
        found = await client.items("/v1/bulk-runs", limit=limit, **filters)
    screen = Screen()
    if as_json:
        for one in found:
            screen.json(one)
    elif found:
        rows = [
            (
                one["id"],
                one["action"],
                one["state"],
                f"{one['done']}/{one['total']}",
                str(one["skipped"] or ""),
                local_time(one["created_at"]),
                _filter(one),
            )
            for one in found
        ]
        screen.table(("bulk run", "action", "state", "done", "skipped", "began", "filter"), rows)
    else:
        screen.note("[there are no bulk runs]")


async def _show(options: Options, run_id: str, follow: bool, as_json: bool) -> int:
    from cli.bulk_action import watch
    from cli.screen import Screen

    screen = Screen()
    async with options.client() as client:
        found = await client.get(f"/v1/bulk-runs/{run_id}")
        if follow:
            return await watch(client, found, screen, as_json)
    if as_json:
        screen.json(found)
    else:
        _show_run(screen, found)
    return 0


async def _abort(options: Options, run_id: str, as_json: bool) -> int:
    from cli.bulk_action import summary
    from cli.failure import CommandFailed
    from cli.screen import Screen

    async with options.client() as client:
        found = await client.abort_bulk_run(run_id)
    screen = Screen()
    if as_json:
        screen.json(found)
    else:
        screen.line(summary(found))
    # One that had finished was not stopped.
    return 0 if found["state"] == "aborted" else CommandFailed.exit_code


def _show_run(screen: Screen, found: dict[str, object]) -> None:
    from cli.safe_text import safe_text
    from cli.times import duration, local_time

    created, ended = str(found["created_at"]), found["ended_at"]
    facts = {
        "bulk run": found["id"],
        "action": found["action"],
        "filter": _filter(found),
        "reason": found["reason"],
        "rate": f"{found['rate']:g} a second" if found["rate"] is not None else "as fast as it goes",
        "state": found["state"],
        "done": f"{found['done']} of {found['total']}",
        "skipped": found["skipped"],
        "began": local_time(created),
        "took": duration(created, str(ended) if ended else None),
    }
    screen.facts({name: safe_text(str(value)) for name, value in facts.items() if value})


def _filter(found: dict[str, object]) -> str:
    wanted = found["filter"]
    assert isinstance(wanted, dict)
    return " ".join(f"{name}={value}" for name, value in wanted.items()) or "all"
