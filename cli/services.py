"""The commands that run chatmill itself: `up`, `gateway`, `worker`, `migrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import Options
from cli.run import run
from cli.terminal import complain

if TYPE_CHECKING:
    from schemas.settings import Settings

Port = Annotated[int | None, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0: a free one.")]


def up(
    context: typer.Context,
    port: Port = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of everything it keeps; .chatmill if not given.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the logs of all parts.")] = False,
) -> None:
    """Run everything on this machine: Redis, a worker, the gateway and, without a key, the demo model."""
    from cli.up import run_up

    options: Options = context.obj
    raise typer.Exit(run_up(port, data, config=options.config, verbose=verbose))


def gateway(
    context: typer.Context,
    port: Port = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
) -> None:
    """Run the HTTP gateway."""
    settings = _settings(context, port=port, host=host)
    from gateway.server import run_gateway

    raise typer.Exit(run_gateway(settings))


def worker(
    context: typer.Context,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="The queue to serve.")] = None,
    threads: Annotated[int | None, typer.Option(metavar="N", min=1, help="Chats a process runs at once.")] = None,
    processes: Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes.")] = None,
) -> None:
    """Run a worker: it answers the jobs of one queue."""
    settings = _settings(context, queue=queue, threads=threads, processes=processes)
    from workers.main import run_worker

    raise typer.Exit(run_worker(settings))


def migrate(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Bring the database to the newest schema and print its revision."""
    run(_migrate(_settings(context), as_json))


async def _migrate(settings: Settings, as_json: bool) -> None:
    from cli.screen import Screen
    from storage.database import open_database
    from storage.migrate import migrate

    database = open_database(settings.sqlalchemy_url)
    try:
        revision = await migrate(database)
    finally:
        await database.close()
    screen = Screen()
    if as_json:
        screen.json({"revision": revision})
    else:
        screen.line(f"The database is at revision {revision}.")


def _settings(context: typer.Context, **given: Any) -> Settings:
    """The settings of a service with what the command line says besides; logging is set up from them."""
    from schemas.logs import configure_logging

    options: Options = context.obj
    settings, source = options.service_settings({name: value for name, value in given.items() if value is not None})
    configure_logging(settings.log_level, settings.log_format)
    if source is not None:
        complain(f"chatmill: {source}")
    return settings
