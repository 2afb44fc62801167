"""Which chatmill this is."""

from __future__ import annotations

import tomllib
from pathlib import Path


def version() -> str:
    """The version in `pyproject.toml`: run from its checkout, chatmill is no installed package that could be asked."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    return str(project["project"]["version"])
