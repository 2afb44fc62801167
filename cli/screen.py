"""Where a command prints: results on stdout, notes about them on stderr."""

from __future__ import annotations

import io
import shutil
import sys
from typing import TYPE_CHECKING, Any, TextIO

import orjson
from rich.console import Console

from cli.safe_text import safe_line, safe_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Where nothing is known of the reader's width.
DEFAULT_WIDTH = 120
#: For tables that a program reads.
UNBOUNDED_WIDTH = 1000


class Screen:
    """stdout and stderr of one command."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        for stream in (self.out, self.err):
            # An answer may hold characters that the terminal's encoding has not.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        self._out_console = _console(self.out)
        #: For what is drawn beside the results.
        self.err_console = _console(self.err)

    @property
    def width(self) -> int:
        """Characters in a line of notes."""
        return shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns if self.err.isatty() else DEFAULT_WIDTH

    def write(self, text: str) -> None:
        """Write to stdout as it is, and at once."""
        self.out.write(text)
        self.out.flush()

    def json(self, value: Any) -> None:
        """One line of JSON on stdout."""
        self.write(orjson.dumps(value).decode() + "\n")

    def line(self, text: str = "", style: str = "") -> None:
        """A line of our own on stdout."""
        self._out_console.print(text, style=style)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table on stdout; only its last column is broken where the terminal is too narrow."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, heading in enumerate(headings, start=1):
            table.add_column(heading, no_wrap=number < len(headings))
        for row in rows:
            table.add_row(*map(safe_text, row))
        self._out_console.print(table, soft_wrap=False)

    def facts(self, facts: Mapping[str, str]) -> None:
        """Names and values on stdout, one a line."""
        width = max(map(len, facts), default=0)
        for name, value in facts.items():
            self.line(f"{name:<{width}}  {value}")

    def note(self, text: str) -> None:
        """A line on stderr, cut to the width of the terminal."""
        self.err_console.print(safe_line(text, self.width), style="dim")

    def explain(self, text: str) -> None:
        """Words of ours on stderr, as they are."""
        self.err_console.print(text)

    def complain(self, text: str) -> None:
        """What went wrong, on stderr and in full."""
        self.err_console.print(safe_text(text), style="red")


def _console(file: TextIO) -> Console:
    """Ours are plain words: nothing in them is markup, and programs that read them want their lines whole."""
    width = None if file.isatty() else UNBOUNDED_WIDTH
    return Console(file=file, width=width, markup=False, highlight=False, emoji=False, soft_wrap=True)
