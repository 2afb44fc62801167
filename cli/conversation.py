"""The conversation that `chatmill chat` holds: one session at the gateway, one answer at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cli.failure import INTERRUPTED, CommandFailed
from cli.follow import show_events, trouble
from cli.follower import Follower
from cli.interrupt import on_interrupt
from schemas.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.answer import Printer
    from cli.client import Client


class Conversation:
    """Asks, prints the answers, and stops them at Ctrl-C. `session_id` is None until the first answer is asked for.

    What asks returns 0 for an answer, 1 for a job that failed or was cancelled by others, and 130 for one that was
    stopped here; it raises CommandFailed if the gateway refuses or is away.
    """

    def __init__(self, client: Client, fields: Mapping[str, Any], session_id: str | None = None) -> None:
        self.session_id = session_id
        self._client = client
        #: Fields of every job beside its question.
        self._fields = fields
        #: The user's message that was asked last.
        self._last_message_id: str | None = None

    def start_anew(self) -> None:
        """Leave the session; the next message opens another one."""
        self.session_id = self._last_message_id = None

    async def ask(self, message: str, printer: Printer) -> int:
        """Have a message answered."""
        return await self._interruptible({"message": message}, printer)

    async def ask_again(self, printer: Printer) -> int:
        """Have the last message answered once more; its earlier answer stays as another branch."""
        if self._last_message_id is None:
            self._last_message_id = await self._find_last_message()
        return await self._interruptible({"reply_to": self._last_message_id}, printer)

    async def _find_last_message(self) -> str:
        """The user's last message in the branch that is being talked on, else the last one at all."""
        if self.session_id is None:
            raise CommandFailed("there is nothing to answer again yet")
        session = await self._client.get(f"/v1/sessions/{self.session_id}")
        asked = [message["id"] for message in session["messages"] if message["role"] == "user"]
        if not asked:
            raise CommandFailed("there is nothing to answer again yet")
        active = [message_id for message_id in session["active_branch"] if message_id in asked]
        return str((active or asked)[-1])

    async def _interruptible(self, question: dict[str, str], printer: Printer) -> int:
        """Ask; Ctrl-C stops the answer and keeps what it said so far, a second one does not wait for that."""
        stop = asyncio.Event()
        answering = asyncio.create_task(self._answer(question, printer, stop))

        def interrupt() -> None:
            if stop.is_set():
                answering.cancel()
            else:
                stop.set()
                printer.note("[stopping …]")

        with on_interrupt(interrupt):
            try:
                code = await answering
            except asyncio.CancelledError:
                if not stop.is_set():
                    raise
                return INTERRUPTED
        return INTERRUPTED if stop.is_set() else code

    async def _answer(self, question: dict[str, str], printer: Printer, stop: asyncio.Event) -> int:
        job_id = new_id()
        asked = {**self._fields, "job_id": job_id, **question}
        if self.session_id is not None:
            asked["session_id"] = self.session_id
        job = await self._client.submit(asked)
        self.session_id, self._last_message_id = job["session_id"], job["user_message_id"]
        follower = Follower(self._client, job_id, reached=True, on_trouble=lambda reason: printer.note(trouble(reason)))
        stopping = asyncio.create_task(self._cancel_when(stop, job_id, printer))
        try:
            await show_events(follower, printer)
        finally:
            stopping.cancel()
        ended = follower.fold.terminal
        return 0 if ended is not None and ended["kind"] == "final" else CommandFailed.exit_code

    async def _cancel_when(self, stop: asyncio.Event, job_id: str, printer: Printer) -> None:
        await stop.wait()
        try:
            await self._client.cancel(job_id)
        except CommandFailed as error:
            printer.note(f"[cannot be stopped: {error}]")
