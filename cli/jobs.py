"""`chatmill jobs`: what is queued, running and done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.failure import CommandFailed, WrongUsage
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
from cli.options import Options, checked_id, lists
from cli.run import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.screen import Screen

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]

app = typer.Typer(name="jobs", invoke_without_command=True, rich_markup_mode=None)


@app.callback(epilog="These options are for the list; show and cancel have their own.")
def jobs(
    context: typer.Context,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Only queued, running, finished, dead or cancelled ones.")
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only those of this session.")] = None,
    limit: Limit = 20,
    as_json: AsJsonLines = False,
) -> None:
    """List the jobs, the newest first; show or cancel one."""
    if lists(context, status, session, as_json):
        filters = {"status": status, "session_id": checked_id(session, "session") if session else None}
        run(_list(context.obj, filters, limit, as_json))


@app.command()
def show(context: typer.Context, job: JobId, as_json: AsJson = False) -> None:
    """Show one job: its state, its answer or its error."""
    run(_show(context.obj, checked_id(job, "job"), as_json))


@app.command()
def cancel(
    context: typer.Context,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="The job's id; or give a filter.")] = None,
    queue: Queue = None,
    status: Annotated[str | None, typer.Option(metavar="STATUS", help="Only queued or only running ones.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only those of this session.")] = None,
    framework: Framework = None,
    model: Model = None,
    since: Since = None,
    until: Until = None,
    everything: Everything = False,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Kept with the job.")] = None,
    dry_run: DryRun = False,
    rate: Rate = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Stop a job, or all that meet a filter. What they have answered so far is kept and marked.

    Many are asked about first. Ctrl-C stops what is not done yet.
    """
    from cli.bulk_action import BulkAction

    filters = given(
        queue=queue,
        status=status,
        session_id=checked_id(session, "session") if session else None,
        framework=framework,
        model=model,
        since=since,
        until=until,
    )
    either("jobs", [job] if job else [], filters, everything)
    if job is not None:
        if dry_run or rate is not None:
            raise WrongUsage("--dry-run and --rate go with a filter or --all")
        run(_cancel(context.obj, checked_id(job, "job"), reason, as_json))
    body = {**(filters or {"all": True}), **given(rate=rate, reason=reason)}
    action = BulkAction(context.obj, "/v1/jobs/cancel", body, "jobs", "cancel", as_json)
    action.perform(dry_run=dry_run, asks=not yes)


async def _list(options: Options, filters: dict[str, Any], limit: int, as_json: bool) -> None:
    from cli.screen import Screen

    async with options.client() as client:
        found = await client.items("/v1/jobs", limit=limit, **filters)
    screen = Screen()
    if as_json:
        for job in found:
            screen.json(job)
    elif found:
        _show_table(screen, found)
    else:
        screen.note("[there are no such jobs]")


async def _show(options: Options, job_id: str, as_json: bool) -> None:
    from cli.screen import Screen

    async with options.client() as client:
        job = await client.get(f"/v1/jobs/{job_id}")
    screen = Screen()
    if as_json:
        screen.json(job)
    else:
        _show_job(screen, job)


async def _cancel(options: Options, job_id: str, reason: str | None, as_json: bool) -> int:
    from cli.screen import Screen

    async with options.client() as client:
        job = await client.cancel(job_id, reason)
    screen = Screen()
    if as_json:
        screen.json(job)
    elif job["status"] == "running":
        screen.line("stopping")
    else:
        screen.line(job["status"])
    # A job that had ended otherwise was not stopped.
    return 0 if job["status"] in ("running", "cancelled") else CommandFailed.exit_code


def _show_table(screen: Screen, found: Sequence[dict[str, Any]]) -> None:
    from cli.times import duration, local_time

    rows = [
        (
            job["id"],
            job["status"],
            job["queue"],
            local_time(job["created_at"]),
            duration(job["created_at"], job["ended_at"]),
            job["error_code"] or "",
        )
        for job in found
    ]
    screen.table(("job", "status", "queue", "accepted", "took", "error"), rows)


def _show_job(screen: Screen, job: dict[str, Any]) -> None:
    from cli.safe_text import safe_text
    from cli.times import duration, local_time

    facts = {
        "job": job["id"],
        "status": job["status"],
        "session": job["session_id"],
        "queue": job["queue"],
        "framework": job["agent_framework"],
        "model": job["model"] or "(default)",
        "attempts": f"{job['attempt']}, of which {job['failures']} failed",
        "accepted": local_time(job["created_at"]),
        "took": duration(job["created_at"], job["ended_at"]),
    }
    if job["error"] is not None:
        facts["error"] = f"{job['error']['message']} ({job['error']['code']})"
        facts["dead letter"] = job["error"]["dead_letter_id"]
    if job["cancel"] is not None:
        facts["stopped"] = job["cancel"]["reason"]
    if job["result"] is not None and job["result"]["usage"] is not None:
        facts["tokens"] = str(job["result"]["usage"]["total_tokens"])
    screen.facts({name: safe_text(value) for name, value in facts.items() if value})
    answer = (job["result"] or job["cancel"] or {}).get("text")
    if answer:
        screen.line()
        screen.write(safe_text(answer).removesuffix("\n") + "\n")
