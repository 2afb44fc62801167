"""`chatmill submit`: put a chat request on the queue."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from cli.follow import follow_to_end
from cli.job_options import Framework, Language, Model, Params, System, Tools, asked_fields
from cli.options import Options, checked_id
from cli.run import run


def submit(
    context: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message; - reads it from stdin.")],
    session: Annotated[str | None, typer.Option(metavar="ID", help="Go on with this session.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print the answer as it comes.")] = False,
    model: Model = None,
    system: System = None,
    tool: Tools = None,
    framework: Framework = None,
    language: Language = None,
    param: Params = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="The queue of the workers that answer.")] = None,
    priority: Annotated[int | None, typer.Option(metavar="N", help="Higher runs first; from -100 to 100.")] = None,
    job_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The job's id, a UUID: the same job is never accepted twice.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the job as JSON; with --follow the events as JSON lines.")
    ] = False,
) -> None:
    """Put a message on the queue; print the job's id, or with --follow the answer as it comes."""
    from schemas.ids import new_id

    asked = {
        # Chosen here, so that a sending whose fate is unknown can be repeated without asking twice.
        "job_id": checked_id(job_id, "job") if job_id else new_id(),
        "message": _message(text),
        "session_id": checked_id(session, "session") if session else None,
        "queue": queue,
        "priority": priority,
        **asked_fields(model=model, system=system, tools=tool, framework=framework, language=language, params=param),
    }
    run(_submit(context.obj, {name: value for name, value in asked.items() if value is not None}, follow, as_json))


async def _submit(options: Options, asked: dict[str, Any], follow: bool, as_json: bool) -> int:
    from cli.screen import Screen

    async with options.client() as client:
        job = await client.submit(asked)
        if follow:
            return await follow_to_end(client, job["id"], reached=True, as_json=as_json)
        screen = Screen()
        if as_json:
            screen.json(job)
        else:
            screen.write(job["id"] + "\n")
            screen.note(f"[read the answer with: chatmill follow {job['id']}]")
    return 0


def _message(text: str) -> str:
    if text != "-":
        return text
    return sys.stdin.buffer.read().decode(errors="replace").removesuffix("\n")
