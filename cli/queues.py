"""`chatmill queues` and `chatmill breakers`: what holds jobs back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.list_options import AsJson, AsJsonLines
from cli.run import run

if TYPE_CHECKING:
    from cli.options import Options
    from cli.screen import Screen

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]

app = typer.Typer(name="queues", no_args_is_help=True, rich_markup_mode=None)
breakers_app = typer.Typer(name="breakers", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def queues() -> None:
    """Queues: what waits in them; pause and resume them."""


@breakers_app.callback()
def breakers() -> None:
    """Breakers: providers and models that failed job after job, and are left alone for a while."""


@app.command("list")
def list_queues(context: typer.Context, as_json: AsJsonLines = False) -> None:
    """List the queues that have unfinished jobs or are paused, over all tenants."""
    run(_list(context.obj, as_json))


@app.command()
def pause(
    context: typer.Context,
    queue: QueueName,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Shown to whoever asks why nothing starts.")] = "",
    as_json: AsJson = False,
) -> None:
    """Let nothing of a queue start. Jobs are still accepted, those that run go on, deadlines go on passing."""
    run(_change(context.obj, queue, "pause", {"reason": reason}, as_json))


@app.command()
def resume(context: typer.Context, queue: QueueName, as_json: AsJson = False) -> None:
    """Let a queue's jobs start again."""
    run(_change(context.obj, queue, "resume", {}, as_json))


@breakers_app.command("list")
def list_breakers(context: typer.Context, as_json: AsJsonLines = False) -> None:
    """List the providers and models whose calls have failed lately."""
    run(_list_breakers(context.obj, as_json))


@breakers_app.command()
def reset(
    context: typer.Context,
    breaker: Annotated[str, typer.Argument(metavar="NAME", help="The breaker's name, as the list says it.")],
    as_json: AsJson = False,
) -> None:
    """Close a breaker: its jobs run again at once."""
    run(_reset(context.obj, breaker, as_json))


async def _list(options: Options, as_json: bool) -> None:
    from cli.screen import Screen

    async with options.client() as client:
        found = (await client.get("/v1/queues"))["data"]
    screen = Screen()
    if as_json:
        for queue in found:
            screen.json(queue)
    elif found:
        rows = [
            (one["name"], str(one["queued"]), str(one["due"]), str(one["running"]), _pause_of(one)) for one in found
        ]
        screen.table(("queue", "queued", "due", "running", "paused"), rows)
    else:
        screen.note("[nothing waits or runs, and nothing is paused]")


async def _change(options: Options, queue: str, verb: str, body: dict[str, Any], as_json: bool) -> None:
    from urllib.parse import quote

    from cli.screen import Screen

    async with options.client() as client:
        found = await client.post(f"/v1/queues/{quote(queue, safe='')}/{verb}", body)
    screen = Screen()
    if as_json:
        screen.json(found)
    else:
        said = _pause_of(found)
        screen.line(f"{found['name']}: {f'paused {said}' if said else 'not paused'}, {found['queued']} queued")


async def _list_breakers(options: Options, as_json: bool) -> None:
    from cli.screen import Screen

    async with options.client() as client:
        found = (await client.get("/v1/breakers"))["data"]
    screen = Screen()
    if as_json:
        for breaker in found:
            screen.json(breaker)
    elif found:
        _show_breakers(screen, found)
    else:
        screen.note("[no provider has failed lately]")


async def _reset(options: Options, name: str, as_json: bool) -> None:
    from cli.screen import Screen

    async with options.client() as client:
        left = await client.post("/v1/breakers/reset", {"name": name})
    screen = Screen()
    if as_json:
        screen.json(left)
    else:
        screen.line("closed")


def _show_breakers(screen: Screen, found: list[dict[str, Any]]) -> None:
    from cli.times import local_time

    rows = [
        (
            one["name"],
            "open" if one["open"] else "closed",
            str(one["failures"]),
            str(one["held"]),
            local_time(one["probe_at"]) if one["probe_at"] else "",
            one["last_error"]["message"] if one["last_error"] else "",
        )
        for one in found
    ]
    screen.table(("breaker", "state", "failures", "held", "next try", "last error"), rows)


def _pause_of(queue: dict[str, Any]) -> str:
    from cli.safe_text import safe_text
    from cli.times import local_time

    if not queue["paused"]:
        return ""
    return safe_text(f"since {local_time(queue['paused_at'])}" + (f": {queue['reason']}" if queue["reason"] else ""))
