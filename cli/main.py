"""The `chatmill` command: its options and the list of its commands.

What a command needs is imported when it runs, so that `chatmill --help` is there at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from cli import bulk, chat, dead, doctor, follow, heartbeat, jobs, quarantine, queues, services, sessions, submit, top
from cli.failure import EXIT_CODES, CommandFailed, WrongUsage
from cli.options import Options
from cli.terminal import complain

if TYPE_CHECKING:
    from collections.abc import Sequence

# Plain help: the drawn one costs 0.3 s of imports.
app = typer.Typer(
    name="chatmill",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)
# The list shows one short line each; the command's own help says more.
for command, in_short in (
    (services.up, "Run everything on this machine."),
    (submit.submit, "Put a message on the queue."),
    (follow.follow, "Print a job's answer as it comes."),
    (chat.chat, "Talk to an agent in the terminal."),
    (top.top, "Watch queues, workers and failures."),
    (services.gateway, "Run the HTTP gateway."),
    (services.worker, "Run a worker."),
    (services.migrate, "Bring the database to the newest schema."),
    (doctor.doctor, "Say what is wrong, and what to do."),
    (heartbeat.heartbeat, "Say whether the workers here are well."),
):
    app.command(short_help=in_short)(command)
app.add_typer(jobs.app, short_help="List, show and cancel jobs.")
app.add_typer(dead.app, short_help="List, show, redrive and discard dead letters.")
app.add_typer(bulk.app, short_help="List, show and abort bulk runs.")
app.add_typer(quarantine.app, short_help="List, show, requeue and drop unreadable messages.")
app.add_typer(queues.app, short_help="List, pause and resume queues.")
app.add_typer(queues.breakers_app, short_help="List and reset breakers.")
app.add_typer(sessions.app, short_help="List, show, make and delete sessions.")


def _print_version(asked: bool) -> None:
    if not asked:
        return
    from schemas.version import version

    typer.echo(f"chatmill {version()}")
    raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="The gateway; if not given CHATMILL_URL, a running `up`, or port 8080 of this machine."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings; chatmill.toml in this folder if not given.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Act for this tenant.")] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Runs chat agents off the request path: a queue, workers and resumable event streams."""
    context.obj = Options(url, config, tenant)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, the process's own or a given one, and leave with its exit code."""
    try:
        app(arguments, prog_name="chatmill")
    except CommandFailed as failure:
        complain(f"chatmill: {failure}")
        sys.exit(failure.exit_code)
    except Exception as error:
        # Imported only now: most commands have loaded it anyway, and `--help` must not.
        from schemas.errors import ChatmillError, ConfigurationError

        if not isinstance(error, ChatmillError):
            raise
        complain(f"chatmill: {error}")
        sys.exit(WrongUsage.exit_code if isinstance(error, ConfigurationError) else CommandFailed.exit_code)
    sys.exit(0)


if __name__ == "__main__":
    main()
