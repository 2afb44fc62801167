"""A bulk run as a command sees it: counted, asked about, begun, and watched to its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.confirm import confirm
from cli.failure import INTERRUPTED, CommandFailed, GatewayUnreachable
from cli.run import run

if TYPE_CHECKING:
    from cli.client import Client
    from cli.options import Options
    from cli.screen import Screen

LOOK_S = 0.2
#: Where no bar can be drawn, a line as often as this says how far it is.
SAY_S = 5.0
#: What has been done to an item, by the run's action.
DONE = {"redrive": "redriven", "discard": "discarded", "cancel": "cancelled or told to stop"}


@dataclass(frozen=True, slots=True)
class BulkAction:
    """What is to be done to everything that meets a filter."""

    options: Options
    path: str
    #: The body without `dry_run`.
    body: dict[str, Any]
    #: As in "12 dead letters".
    things: str
    #: As in "discard 12 dead letters?".
    verb: str
    as_json: bool

    def perform(self, *, dry_run: bool, asks: bool) -> None:
        """Do it, and leave with the exit code. Raises CommandFailed."""
        if dry_run:
            run(self._preview())
        if asks:
            found = asyncio.run(self._count())
            if found["count"]:
                confirm(f"{self.verb} {found['count']} {self.things}?")
        run(self._begin())

    async def _count(self) -> dict[str, Any]:
        async with self.options.client() as client:
            return await client.post(self.path, {**self.body, "dry_run": True})

    async def _preview(self) -> None:
        from cli.screen import Screen

        found = await self._count()
        screen = Screen()
        if self.as_json:
            screen.json(found)
            return
        screen.line(f"would {self.verb} {found['count']} {self.things}")
        for item in found["ids"]:
            screen.line(f"  {item}")
        if found["count"] > len(found["ids"]):
            screen.line(f"  and {found['count'] - len(found['ids'])} more")

    async def _begin(self) -> int:
        from cli.screen import Screen

        async with self.options.client() as client:
            started = await client.post(self.path, self.body)
            return await watch(client, started, Screen(), self.as_json)


async def watch(client: Client, started: dict[str, Any], screen: Screen, as_json: bool) -> int:
    """Show a bulk run until it has ended; Ctrl-C stops it. Returns the exit code."""
    from cli.interrupt import on_interrupt

    stop = asyncio.Event()
    with on_interrupt(stop.set):
        try:
            ended = await _until_end(client, started, screen, stop)
        except GatewayUnreachable as error:
            raise GatewayUnreachable(
                f"{error}; the bulk run goes on by itself: chatmill bulk show {started['id']}"
            ) from None
    if as_json:
        screen.json(ended)
    else:
        screen.line(summary(ended))
    if stop.is_set() and ended["state"] == "aborted":
        return INTERRUPTED
    return 0 if ended["state"] == "finished" else CommandFailed.exit_code


def summary(bulk_run: dict[str, Any]) -> str:
    """What was done, in a sentence."""
    said = f"{bulk_run['done']} of {bulk_run['total']} {DONE[bulk_run['action']]}"
    if bulk_run["skipped"]:
        said += f", {bulk_run['skipped']} skipped"
    return said if bulk_run["state"] == "finished" else f"{said}; {bulk_run['state']}"


async def _until_end(client: Client, started: dict[str, Any], screen: Screen, stop: asyncio.Event) -> dict[str, Any]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=screen.err_console,
        transient=True,
        disable=not screen.err.isatty(),
    )
    now, said_at = started, asyncio.get_running_loop().time()
    with bar:
        task = bar.add_task(started["action"], total=started["total"])
        while now["state"] == "running":
            if await _set_within(stop, LOOK_S):
                return await client.abort_bulk_run(started["id"])
            now = await client.get(f"/v1/bulk-runs/{started['id']}")
            bar.update(task, completed=now["done"] + now["skipped"])
            if bar.disable and asyncio.get_running_loop().time() - said_at >= SAY_S:
                said_at += SAY_S
                screen.note(f"[{summary(now)}]")
    return now


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
