"""`chatmill sessions`: conversations and their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.job_options import Framework, Language, Model, Params, System, Tools, asked_fields
from cli.list_options import AsJson, AsJsonLines, Limit
from cli.options import Options, checked_id, lists
from cli.run import run

if TYPE_CHECKING:
    from cli.screen import Screen

SessionId = Annotated[str, typer.Argument(metavar="ID", help="The session's id.")]

app = typer.Typer(name="sessions", invoke_without_command=True, rich_markup_mode=None)


@app.callback(epilog="These options are for the list; show, new and delete have their own.")
def sessions(
    context: typer.Context,
    limit: Limit = 20,
    as_json: AsJsonLines = False,
) -> None:
    """List the sessions, the newest first; show, make or delete one."""
    if lists(context, as_json):
        run(_list(context.obj, limit, as_json))


@app.command()
def show(context: typer.Context, session: SessionId, as_json: AsJson = False) -> None:
    """Show a conversation: the branch that is being talked on. With --json all branches."""
    run(_show(context.obj, checked_id(session, "session"), as_json))


@app.command()
def new(
    context: typer.Context,
    model: Model = None,
    system: System = None,
    tool: Tools = None,
    framework: Framework = None,
    language: Language = None,
    param: Params = None,
    as_json: AsJson = False,
) -> None:
    """Make a session with its own settings and print its id."""
    settings = asked_fields(
        model=model, system=system, tools=tool, framework=framework, language=language, params=param
    )
    run(_new(context.obj, settings, as_json))


@app.command()
def delete(context: typer.Context, session: SessionId, as_json: AsJson = False) -> None:
    """Delete a session with its messages and ended jobs."""
    run(_delete(context.obj, checked_id(session, "session"), as_json))


async def _list(options: Options, limit: int, as_json: bool) -> None:
    from cli.screen import Screen
    from cli.times import local_time

    async with options.client() as client:
        found = await client.items("/v1/sessions", limit=limit)
    screen = Screen()
    if as_json:
        for session in found:
            screen.json(session)
    elif found:
        rows = [(one["id"], local_time(one["updated_at"]), one["agent_framework"], one["model"] or "") for one in found]
        screen.table(("session", "changed", "framework", "model"), rows)
    else:
        screen.note("[there are no sessions]")


async def _show(options: Options, session_id: str, as_json: bool) -> None:
    from cli.screen import Screen

    async with options.client() as client:
        session = await client.get(f"/v1/sessions/{session_id}")
    screen = Screen()
    if as_json:
        screen.json(session)
        return
    facts = {
        "session": session["id"],
        "framework": session["agent_framework"],
        "model": session["model"] or "(default)",
        "system": session["system"],
        "language": session["language"],
    }
    screen.facts({name: value for name, value in facts.items() if value})
    messages = {message["id"]: message for message in session["messages"]}
    for message_id in session["active_branch"]:
        _show_message(screen, messages[message_id])


async def _new(options: Options, settings: dict[str, Any], as_json: bool) -> None:
    from cli.screen import Screen

    async with options.client() as client:
        session = await client.create_session(settings)
    screen = Screen()
    if as_json:
        screen.json(session)
    else:
        screen.write(session["id"] + "\n")
        screen.note(f"[talk in it with: chatmill chat --session {session['id']}]")


async def _delete(options: Options, session_id: str, as_json: bool) -> None:
    from cli.screen import Screen

    async with options.client() as client:
        await client.delete_session(session_id)
    screen = Screen()
    if as_json:
        screen.json({"id": session_id, "deleted": True})
    else:
        screen.line("deleted")


def _show_message(screen: Screen, message: dict[str, Any]) -> None:
    """One turn: who, then what was said; tool calls and results in a line each."""
    from cli.answer import tool_note
    from cli.safe_text import safe_line, safe_text

    if message["role"] == "tool":
        screen.line(safe_line(f"[result: {message['content']}]", screen.width), style="dim")
        return
    screen.line()
    screen.line(message["role"] + (" (stopped)" if message["status"] == "cancelled" else ""), style="bold")
    if message["content"]:
        screen.write(safe_text(message["content"]).removesuffix("\n") + "\n")
    for call in message["tool_calls"] or ():
        screen.line(safe_line(tool_note({**call, "status": "started"}), screen.width), style="dim")
