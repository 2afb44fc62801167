"""Asking before much is thrown away."""

from __future__ import annotations

import sys

import typer

from cli.failure import INTERRUPTED, CommandFailed, WrongUsage
from cli.terminal import complain


def confirm(question: str) -> None:
    """Ask for a yes. Raises WrongUsage where nobody can be asked, and CommandFailed for a no."""
    if not sys.stdin.isatty():
        raise WrongUsage(f"{question} say --yes, since nobody can be asked here")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    try:
        answer = input()
    except (EOFError, KeyboardInterrupt):
        complain("")
        raise typer.Exit(INTERRUPTED) from None
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandFailed("nothing was done")
