"""Lines from whoever talks to `chatmill chat`: a person at a terminal or a program at a pipe."""

from __future__ import annotations

import contextlib
import sys

PROMPT = "you> "


class Prompt:
    """Reads lines; asks for them where a person types."""

    def __init__(self) -> None:
        self.asks = sys.stdin.isatty()
        if self.asks:
            # Imported for what it does to input(): editing, and a history of what was typed.
            with contextlib.suppress(ImportError):  # some Pythons come without it
                import readline  # noqa: F401

    def read(self) -> str | None:
        """The next line; None at the end, or at Ctrl-C or Ctrl-D where a person types."""
        if not self.asks:
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        try:
            return input(self._prompt())
        except (EOFError, KeyboardInterrupt):
            sys.stderr.write("\n")
            return None

    def _prompt(self) -> str:
        if sys.stdout.isatty():
            return PROMPT
        # The answers go elsewhere, and input() would send the prompt after them.
        sys.stderr.write(PROMPT)
        sys.stderr.flush()
        return ""
