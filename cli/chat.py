"""`chatmill chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.failure import INTERRUPTED, CommandFailed
from cli.job_options import Framework, Language, Model, Params, System, Tools, asked_fields
from cli.options import Options, checked_id

if TYPE_CHECKING:
    from cli.answer import Printer
    from cli.client import Client
    from cli.conversation import Conversation
    from cli.prompt import Prompt
    from cli.screen import Screen

HELP = """\
/again    answer the last message once more
/new      begin a new session
/session  show this session's id
/help     show this
/quit     leave (also Ctrl-C or Ctrl-D at the prompt)
Ctrl-C while an answer comes stops it and keeps what it said.
A message that begins with / is written with two of them."""


def chat(
    context: typer.Context,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Go on with this session.")] = None,
    model: Model = None,
    system: System = None,
    tool: Tools = None,
    framework: Framework = None,
    language: Language = None,
    param: Params = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the events as JSON lines.")] = False,
) -> None:
    """Talk to an agent in the terminal: type a message, read the answer as it comes.

    Ctrl-C stops an answer and keeps what it said; /help shows what else there is. Where stdin is not a terminal, every
    line of it is a message, and the exit code is that of the last answer that failed.
    """
    fields = asked_fields(model=model, system=system, tools=tool, framework=framework, language=language, params=param)
    raise typer.Exit(_chat(context.obj, checked_id(session, "session") if session else None, fields, as_json))


def _chat(options: Options, session_id: str | None, fields: dict[str, Any], as_json: bool) -> int:
    """The conversation's exit code. The loop rests while a person types, so that Ctrl-C is the prompt's then."""
    from cli.conversation import Conversation
    from cli.prompt import Prompt
    from cli.screen import Screen

    with asyncio.Runner() as runner:
        client = options.client()
        try:
            talk = _Talk(Conversation(client, fields, session_id), Screen(), Prompt(), as_json)
            runner.run(talk.greet(client))
            return talk.run(runner)
        except KeyboardInterrupt:  # while nothing was being answered
            return INTERRUPTED
        finally:
            runner.run(client.close())


class _Talk:
    """Takes lines from the prompt to the conversation until there are no more."""

    def __init__(self, conversation: Conversation, screen: Screen, prompt: Prompt, as_json: bool) -> None:
        self._conversation = conversation
        self._screen = screen
        self._prompt = prompt
        self._as_json = as_json

    async def greet(self, client: Client) -> None:
        """Make sure that the gateway, and the session to go on with, are there before anything is typed."""
        session_id = self._conversation.session_id
        if session_id is None:
            await client.get("/healthz")
        else:
            session = await client.get(f"/v1/sessions/{session_id}")
            if self._prompt.asks:
                self._screen.note(f"[{len(session['active_branch'])} messages so far]")
        if self._prompt.asks:
            self._screen.note("[/help shows the commands; Ctrl-C stops an answer; Ctrl-D leaves]")

    def run(self, runner: asyncio.Runner) -> int:
        failed = 0
        while (line := self._prompt.read()) is not None:
            if line.strip() in ("/quit", "/exit"):
                break
            try:
                code = runner.run(self._take(line))
            except CommandFailed as error:
                if not self._prompt.asks:
                    raise
                self._screen.complain(str(error))
                continue
            if self._prompt.asks:
                continue
            if code == INTERRUPTED:
                return code
            failed = code or failed
        if self._prompt.asks and self._conversation.session_id is not None:
            self._screen.note(f"[come back with: chatmill chat --session {self._conversation.session_id}]")
        return failed

    async def _take(self, line: str) -> int:
        """What one line asks for."""
        command = line.strip()
        if not command:
            return 0
        if not command.startswith("/") or command.startswith("//"):
            message = line.replace("//", "/", 1) if command.startswith("//") else line
            return await self._conversation.ask(message, self._printer())
        match command:
            case "/again":
                return await self._conversation.ask_again(self._printer())
            case "/new":
                self._conversation.start_anew()
                self._screen.note("[a new session]")
            case "/session":
                self._screen.note(f"[{self._conversation.session_id or 'no session yet: it begins with a message'}]")
            case "/help":
                self._screen.explain(HELP)
            case _:
                raise CommandFailed(f"there is no command {command.split()[0]}; /help shows those there are")
        return 0

    def _printer(self) -> Printer:
        from cli.answer import AnswerPrinter, JsonPrinter

        return JsonPrinter(self._screen) if self._as_json else AnswerPrinter(self._screen)
