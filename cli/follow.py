"""`chatmill follow`: a job's answer as it is made."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from cli.failure import CommandFailed, GatewayUnreachable, WrongUsage
from cli.options import Options, checked_id
from cli.run import run

if TYPE_CHECKING:
    from cli.answer import Printer
    from cli.client import Client
    from cli.follower import Follower
    from schemas.job_event import EventId

#: After so many seconds without a worker the reader is told what is waited for.
WAITING_S = 3.0


def follow(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")],
    after: Annotated[str | None, typer.Option(metavar="ID", help="Show only what came behind this event.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the events as JSON lines.")] = False,
) -> None:
    """Follow a job: print its answer as it comes, until the job has ended.

    The answer goes to stdout and the notes (tool calls, retries) to stderr. A connection that breaks is taken up again
    where it broke. Ctrl-C stops following; the job goes on.
    """
    options: Options = context.obj
    run(_follow(options, checked_id(job, "job"), _event_id(after), as_json))


async def _follow(options: Options, job_id: str, after: EventId | None, as_json: bool) -> int:
    async with options.client() as client:
        return await follow_to_end(client, job_id, after=after, as_json=as_json)


async def follow_to_end(
    client: Client, job_id: str, *, after: EventId | None = None, reached: bool = False, as_json: bool = False
) -> int:
    """Print a job's events until it has ended; the exit code that its outcome makes.

    `reached` says that the gateway has just answered.
    """
    from cli.answer import AnswerPrinter, JsonPrinter
    from cli.follower import Follower
    from cli.screen import Screen
    from schemas.fold import BEFORE_ALL

    screen = Screen()
    printer: Printer = JsonPrinter(screen) if as_json else AnswerPrinter(screen, after=after)
    # A reader of text must know all of it to tell what an event changes, so what was shown before is read again.
    follower = Follower(
        client,
        job_id,
        after=after if as_json else None,
        reached=reached,
        on_trouble=lambda reason: printer.note(trouble(reason)),
    )
    try:
        await show_events(follower, printer)
    except asyncio.CancelledError:
        printer.note(f"[the job goes on; come back with: {_come_back(job_id, follower)}]")
        raise
    except GatewayUnreachable as error:
        if follower.fold.last_id == BEFORE_ALL:
            raise
        raise GatewayUnreachable(f"{error}; come back with: {_come_back(job_id, follower)}") from error
    if follower.fold.terminal is not None:
        return 0 if follower.fold.terminal["kind"] == "final" else CommandFailed.exit_code
    job = await client.get(f"/v1/jobs/{job_id}")
    return 0 if job["status"] == "finished" else CommandFailed.exit_code


async def show_events(follower: Follower, printer: Printer) -> None:
    """Print a job's events as they come, until it has ended."""
    loop = asyncio.get_running_loop()
    waiting = loop.call_later(WAITING_S, printer.note, "[waiting for a worker …]")
    try:
        async with aclosing(follower.events()) as events:
            async for event_id, event in events:
                if event["kind"] != "queued":
                    waiting.cancel()
                printer.show(event_id, event, follower.fold)
    finally:
        waiting.cancel()


def _come_back(job_id: str, follower: Follower) -> str:
    """The command that goes on where this one ends."""
    from schemas.fold import BEFORE_ALL

    cursor = follower.fold.last_id
    return f"chatmill follow {job_id}" + ("" if cursor == BEFORE_ALL else f" --after {cursor}")


def trouble(reason: str) -> str:
    return f"[connection lost ({reason}); trying again …]"


def _event_id(text: str | None) -> EventId | None:
    if text is None:
        return None
    from schemas.job_event import EventId

    try:
        return EventId.parse(text)
    except ValueError as error:
        raise WrongUsage(f"--after: {error}") from None
