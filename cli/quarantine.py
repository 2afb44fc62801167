"""`chatmill quarantine`: queue messages nobody could read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.failure import WrongUsage
from cli.list_options import AsJson, AsJsonLines, Limit, Queue, Yes
from cli.options import Options, checked_id
from cli.run import run

if TYPE_CHECKING:
    from cli.screen import Screen

EntryId = Annotated[str, typer.Argument(metavar="ID", help="The entry's id.")]
EntryIds = Annotated[list[str], typer.Argument(metavar="ID", help="Entries.")]

app = typer.Typer(name="quarantine", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def quarantine() -> None:
    """Queue messages nobody could read, kept with their bytes."""


@app.command("list")
def list_entries(
    context: typer.Context,
    queue: Queue = None,
    state: Annotated[
        str, typer.Option(metavar="STATE", help="lying (nobody has decided), requeued or dropped.")
    ] = "lying",
    limit: Limit = 20,
    as_json: AsJsonLines = False,
) -> None:
    """List the messages, the newest first."""
    filters = {"state": state, **({"queue": queue} if queue is not None else {})}
    run(_list(context.obj, filters, limit, as_json))


@app.command()
def show(context: typer.Context, entry: EntryId, as_json: AsJson = False) -> None:
    """Show one message with its bytes."""
    run(_show(context.obj, checked_id(entry, "quarantined message"), as_json))


@app.command()
def requeue(
    context: typer.Context,
    entries: EntryIds,
    payload: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="The job it was meant to be; @FILE reads it from a file, - from stdin."),
    ] = None,
    as_json: AsJsonLines = False,
) -> None:
    """Put messages back on their queue, as they were or corrected.

    A message that nobody can read this time either comes back as a new entry.
    """
    from cli.one_by_one import one_by_one

    ids = [checked_id(entry, "quarantined message") for entry in entries]
    if payload is not None and len(ids) > 1:
        raise WrongUsage("--payload corrects one message, not several")
    body = {} if payload is None else {"payload": _read_payload(payload)}
    run(one_by_one(context.obj, "/v1/quarantine/{}/requeue", ids, "requeued", as_json, body))


@app.command()
def drop(context: typer.Context, entries: EntryIds, yes: Yes = False, as_json: AsJsonLines = False) -> None:
    """Give messages up. Asks if they are many."""
    from cli.confirm import confirm
    from cli.one_by_one import one_by_one

    ids = [checked_id(entry, "quarantined message") for entry in entries]
    if len(ids) > 1 and not yes:
        confirm(f"drop {len(ids)} messages?")
    run(one_by_one(context.obj, "/v1/quarantine/{}/drop", ids, "dropped", as_json))


def _read_payload(text: str) -> dict[str, Any]:
    import json
    import sys
    from pathlib import Path

    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        value = json.loads(text)
    except OSError as error:
        raise WrongUsage(f"--payload: {error}") from None
    except ValueError as error:
        raise WrongUsage(f"--payload is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise WrongUsage("--payload is not a JSON object")
    return value


async def _list(options: Options, filters: dict[str, Any], limit: int, as_json: bool) -> None:
    from cli.screen import Screen
    from cli.times import local_time

    async with options.client() as client:
        found = await client.items("/v1/quarantine", limit=limit, **filters)
    screen = Screen()
    if as_json:
        for entry in found:
            screen.json(entry)
    elif found:
        rows = [(e["id"], e["queue"], local_time(e["created_at"]), str(e["size"]), e["reason"]) for e in found]
        screen.table(("message", "queue", "kept", "bytes", "reason"), rows)
    else:
        screen.note("[there are no such messages]")


async def _show(options: Options, entry_id: str, as_json: bool) -> None:
    from cli.screen import Screen

    async with options.client() as client:
        entry = await client.get(f"/v1/quarantine/{entry_id}")
    screen = Screen()
    if as_json:
        screen.json(entry)
    else:
        _show_entry(screen, entry)


def _show_entry(screen: Screen, entry: dict[str, Any]) -> None:
    import base64

    from cli.safe_text import safe_text
    from cli.times import local_time

    facts = {
        "message": entry["id"],
        "state": entry["state"] + (f" {local_time(entry['resolved_at'])}" if entry["resolved_at"] else ""),
        "queue": entry["queue"],
        "kept": local_time(entry["created_at"]),
        "reason": entry["reason"],
        "bytes": str(entry["size"]) + ("" if entry["text"] is not None else ", not UTF-8"),
    }
    screen.facts({name: safe_text(value) for name, value in facts.items()})
    screen.line()
    if entry["text"] is not None:
        screen.write(safe_text(entry["text"]).removesuffix("\n") + "\n")
    else:
        _show_bytes(screen, base64.b64decode(entry["payload"]))


def _show_bytes(screen: Screen, payload: bytes, most: int = 1024) -> None:
    """As a hex dump."""
    for start in range(0, min(len(payload), most), 16):
        row = payload[start : start + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        screen.line(f"{start:08x}  {row.hex(' '):<47}  {shown}")
    if len(payload) > most:
        screen.line(f"… {len(payload) - most} more; all of it with --json", style="dim")
