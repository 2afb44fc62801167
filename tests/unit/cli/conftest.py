"""Every test of the command line stands in a place of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

_TOLD = ("CHATMILL_", "OPENAI_", "REDIS_URL", "DATABASE_URL")


@pytest.fixture(autouse=True)
def clean_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A working directory without settings, and an environment that tells nothing about chatmill."""
    monkeypatch.chdir(tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_TOLD)}
    with patch.dict(os.environ, kept, clear=True):
        yield
