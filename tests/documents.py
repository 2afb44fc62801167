"""The parts of the documentation that tests look at: blocks of code that are marked, and tables."""

from __future__ import annotations

import re
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]

_MARKED = re.compile(r"<!-- test: ([\w-]+) -->\n```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def read(document: str) -> str:
    """The text of a document, named from the checkout's root."""
    return (CHECKOUT / document).read_text(encoding="utf-8")


def blocks(document: str, name: str) -> list[str]:
    """The blocks of code under `<!-- test: name -->`, in order; there is at least one."""
    found = [code for marked, code in _MARKED.findall(read(document)) if marked == name]
    assert found, f"{document} has no block marked {name}"
    return found


def block(document: str, name: str) -> str:
    """The one block of code under `<!-- test: name -->`."""
    (code,) = blocks(document, name)
    return code


def table(document: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    match = re.search(
        rf"^#+ {re.escape(heading)}\n(?:(?!^#+ ).*\n)*?(?:^\|.*\n)(?:^\|[ -|]+\n)((?:^\|.*\n)+)",
        read(document),
        re.MULTILINE,
    )
    assert match is not None, f"{document} has no table under {heading!r}"
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in match[1].splitlines()]


def names(cell: str) -> list[str]:
    """What stands in code in a cell of a table."""
    return re.findall(r"`([^`]+)`", cell)
