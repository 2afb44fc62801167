"""`chatmill heartbeat`: are the workers of this data folder well? Made for health checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.failure import CommandFailed
from cli.options import Options

if TYPE_CHECKING:
    from pathlib import Path

    from workers.heartbeat_file import FoundFile


def heartbeat(
    context: typer.Context,
    max_age: Annotated[
        float | None,
        typer.Option(metavar="S", min=1, help="A sign of life may be so many seconds old; 15 if not given."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Say whether the worker processes of this machine's data folder are well, a line for each.

    A process is well if it said so within --max-age, its consumer has polled Redis within 15 s, and its event loop has
    moved within 10 s. Exit code 1 if one is not, or if there is none.
    """
    from cli.screen import Screen
    from schemas.heartbeat import FRESH_WITHIN_S

    options: Options = context.obj
    data_dir = options.settings().data_dir
    found = _look(data_dir, max_age or FRESH_WITHIN_S)
    well = bool(found) and not any(one["faults"] for one in found)
    screen = Screen()
    if as_json:
        screen.json({"ok": well, "workers": found})
    elif not found:
        screen.line(f"no worker: no worker process runs on the data folder {data_dir} (CHATMILL_DATA_DIR)")
    for one in found if not as_json else ():
        screen.line(_line(one))
    raise typer.Exit(0 if well else CommandFailed.exit_code)


def _look(data_dir: Path, max_age_s: float) -> list[dict[str, Any]]:
    """Each worker process with what is wrong with it."""
    from workers.heartbeat_file import find_files

    try:
        files = find_files(data_dir)
    except OSError as error:
        raise CommandFailed(f"the signs of life in {data_dir} cannot be read: {error.strerror}") from None
    return [_judged(file, max_age_s) for file in files]


def _judged(file: FoundFile, max_age_s: float) -> dict[str, Any]:
    import time

    sign = file.heartbeat
    about: dict[str, Any] = {"pid": file.pid, "worker": None, "queue": None, "running": None, "closing": False}
    if sign is not None:
        about |= {"worker": sign.worker, "queue": sign.queue, "running": sign.running, "closing": sign.closing}
    if not file.alive:
        faults = ["it was killed, or crashed: its jobs run again when their leases are past"]
    elif sign is None:
        faults = ["its sign of life cannot be read"]
    else:
        faults = sign.find_faults(time.time() - sign.written().timestamp(), max_age_s)
    return {**about, "faults": faults}


def _line(one: dict[str, Any]) -> str:
    from cli.safe_text import safe_line

    who = f"process {one['pid']}"
    if one["worker"] is not None:
        who = f"worker {one['worker']} (process {one['pid']}, queue {one['queue']}, {one['running']} running)"
    state = "; ".join(one["faults"]) or ("well, shutting down" if one["closing"] else "well")
    return safe_line(f"{who}: {state}", 1000)
