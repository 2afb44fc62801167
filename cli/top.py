"""`chatmill top`: queues, workers, failures and throughput on one live screen."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.failure import CommandFailed
from cli.options import Options
from cli.run import run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.client import Client

#: How long one look may take; a gateway that takes longer is told as one that does not answer.
LOOK_S = 5.0


def top(
    context: typer.Context,
    interval: Annotated[float, typer.Option(metavar="S", min=0.2, max=60, help="Seconds between two looks.")] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame and leave; so it is without a terminal.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON of one look and leave.")] = False,
) -> None:
    """Show queues, workers, failures and throughput, live. Leave with q or Ctrl-C."""
    run(_top(context.obj, interval, once, as_json))


@dataclass(slots=True)
class Look:
    """What was seen last, and what went wrong since; the overview stays on the screen while nobody answers."""

    url: str
    overview: dict[str, Any] | None = None
    trouble: str | None = None


async def _top(options: Options, interval_s: float, once: bool, as_json: bool) -> int:
    async with options.client() as client:
        if once or as_json or not sys.stdout.isatty():
            return await _print_once(client, as_json)
        return await _watch(client, interval_s)


async def _print_once(client: Client, as_json: bool) -> int:
    from rich.console import Console

    from cli.screen import DEFAULT_WIDTH, Screen
    from cli.top_frame import frame

    overview = await client.get("/v1/overview")
    if as_json:
        Screen().json(overview)
        return 0
    screen = Screen()  # makes stdout take every character
    width = None if sys.stdout.isatty() else DEFAULT_WIDTH
    console = Console(file=screen.out, width=width, markup=False, highlight=False, emoji=False)
    console.print(frame(Look(client.url, overview), console.width, height=None))
    return 0


async def _watch(client: Client, interval_s: float) -> int:
    from rich.console import Console
    from rich.live import Live

    from cli.top_frame import frame

    look = Look(client.url)
    console = Console(markup=False, highlight=False, emoji=False)
    leave = asyncio.Event()

    def draw() -> Any:
        return frame(look, console.width, console.height)

    with _keys(leave), Live(draw(), console=console, screen=True, auto_refresh=False) as live:
        looking = asyncio.create_task(_look_for_ever(client, look, interval_s))
        try:
            while not leave.is_set():
                # Drawn more often than looked, so that a window that was resized is filled again at once.
                live.update(draw(), refresh=True)
                if looking.done():
                    looking.result()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(interval_s, 0.25)):
                        await leave.wait()
        finally:
            looking.cancel()
            await asyncio.wait([looking])
    return 0


async def _look_for_ever(client: Client, look: Look, interval_s: float) -> None:
    while True:
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(LOOK_S):
                look.overview = await client.get("/v1/overview")
            look.trouble = None
        except TimeoutError:
            look.trouble = f"the gateway at {client.url} does not answer; trying again"
        except CommandFailed as failure:
            look.trouble = f"{failure}; trying again"
        await asyncio.sleep(max(0.0, began + interval_s - asyncio.get_running_loop().time()))


@contextlib.contextmanager
def _keys(leave: asyncio.Event) -> Iterator[None]:
    """Set `leave` at q, Ctrl-C, SIGTERM or the end of the terminal's input, for the time of the context."""
    import os
    import signal
    import termios
    import tty

    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        loop.add_signal_handler(number, leave.set)
    descriptor = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = None

    def read() -> None:
        assert descriptor is not None
        typed = os.read(descriptor, 100)
        if not typed:
            loop.remove_reader(descriptor)
        # A key that sends a sequence is none of ours, though a q may stand in it.
        if not typed or (not typed.startswith(b"\x1b") and set(typed) & set(b"qQ\x03\x04")):
            leave.set()

    try:
        if descriptor is not None:
            before = termios.tcgetattr(descriptor)
            tty.setcbreak(descriptor)
            loop.add_reader(descriptor, read)
        yield
    finally:
        if descriptor is not None and before is not None:
            loop.remove_reader(descriptor)
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        for number in signals:
            loop.remove_signal_handler(number)
