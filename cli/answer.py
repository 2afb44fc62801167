"""An answer as it is printed while it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import orjson

from cli.safe_text import SafeText

if TYPE_CHECKING:
    from cli.screen import Screen
    from schemas.fold import Fold
    from schemas.job_event import EventId

AGAIN = "— starting again —"
OUTCOMES = {
    "blocked": "the answer was blocked by the model's provider",
    "step_limit": "the answer ended at the limit of steps",
}


class Printer(Protocol):
    """Shows a job's events."""

    def show(self, event_id: EventId, event: dict[str, Any], fold: Fold) -> None:
        """Show one new event; `fold` has taken it already."""

    def note(self, text: str) -> None:
        """Tell something beside the answer."""


class JsonPrinter:
    """Prints every event as one line of JSON: its id, then its fields."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def show(self, event_id: EventId, event: dict[str, Any], fold: Fold) -> None:
        self._screen.json({"id": str(event_id), **event})

    def note(self, text: str) -> None:
        self._screen.note(text)


class AnswerPrinter:
    """Prints the text on stdout as it comes and everything else as notes on stderr.

    What stands on stdout behind the last `AGAIN` line, if there is one, is the folded text made safe for a terminal.
    Events up to `after` have been shown before: they are only noted as such.
    """

    def __init__(self, screen: Screen, *, after: EventId | None = None) -> None:
        self._screen = screen
        self._after = after
        self._safe = SafeText()
        #: The folded text as far as it is printed.
        self._shown = ""
        self._tools_shown = 0
        self._at_line_start = True

    def show(self, event_id: EventId, event: dict[str, Any], fold: Fold) -> None:
        if self._after is not None and event_id <= self._after:
            self._shown, self._tools_shown = fold.text, len(fold.tools)
            return
        kind = event["kind"]
        if kind == "started" or (kind == "queued" and self._shown):
            self._start_again()
        elif kind == "text":
            self._print(self._safe.feed(event["text"]))
            self._shown = fold.text
        elif kind in ("snapshot", "final", "cancelled"):
            self._catch_up(fold.text)
        self._show_tools(fold.tools)
        self._explain(kind, event)
        if fold.terminal is not None:
            self._end()

    def note(self, text: str) -> None:
        """Print a note on a line of its own."""
        self._leave_line()
        self._screen.note(text)

    def _leave_line(self) -> None:
        if not self._at_line_start and self._screen.out.isatty():
            # The text and the notes share the terminal; anywhere else a line end would be added to the text.
            self._screen.write("\n")
            self._at_line_start = True

    def _catch_up(self, text: str) -> None:
        """Print what of the text is missing, or all of it where something else was shown."""
        if not text.startswith(self._shown):
            self._start_again()
        self._print(self._safe.feed(text[len(self._shown) :]))
        self._shown = text

    def _start_again(self) -> None:
        if self._shown:
            self._end()
            self._screen.line(AGAIN, style="dim")
        self._safe = SafeText()
        self._shown, self._tools_shown = "", 0

    def _end(self) -> None:
        """End the line that the text stands in."""
        if not self._at_line_start:
            self._print("\n")

    def _print(self, text: str) -> None:
        if text:
            self._screen.write(text)
            self._at_line_start = text.endswith("\n")

    def _show_tools(self, tools: list[dict[str, Any]]) -> None:
        for tool in tools[self._tools_shown :]:
            self.note(tool_note(tool))
        self._tools_shown = len(tools)

    def _explain(self, kind: str, event: dict[str, Any]) -> None:
        """Notes on what happens to the job."""
        if kind == "retrying":
            self.note(f"[the attempt failed: {event['error']['message']}; another follows]")
        elif kind == "requeued":
            self.note(f"[the worker stops ({event['reason']}); another one takes over]")
        elif kind == "failed":
            self._leave_line()
            self._screen.complain(f"failed: {event['error']['message']} ({event['error']['code']})")
        elif kind == "cancelled":
            self.note(f"[cancelled: {event['reason']}]")
        elif kind == "final" and event["outcome"] in OUTCOMES:
            self.note(f"[{OUTCOMES[event['outcome']]}]")


def tool_note(tool: dict[str, Any]) -> str:
    """A tool call in one line."""
    name = tool["name"]
    if tool["status"] == "started":
        args = tool.get("args")
        return f"[{name} {orjson.dumps(args).decode()}]" if args else f"[{name}]"
    result = tool.get("result", "done")
    return f"[{name} failed: {result}]" if tool.get("is_error") else f"[{name}: {result}]"
