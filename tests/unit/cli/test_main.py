"""The command as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from schemas.version import version

CHECKOUT = Path(__file__).resolve().parents[3]
#: Together they take seconds and a hundred megabytes.
HEAVY = {"langgraph", "langchain_core", "openai", "pydantic_settings", "sqlalchemy", "redis", "rich", "httpx2"}


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["chat", "--help"], ["jobs", "show", "--help"], ["--version"]])
def test_help_is_there_without_loading_what_commands_need(arguments: list[str]) -> None:
    program = f"import atexit, sys; atexit.register(lambda: print(*{HEAVY} & set(sys.modules), file=sys.stderr)); "
    ended = python("-c", program + f"from cli.main import main; main({arguments})")
    assert ended.returncode == 0
    assert ended.stderr.split() == []


def test_help_tells_the_exit_codes() -> None:
    shown = python("-m", "cli.main", "--help")
    assert shown.returncode == 0
    for line in ("  3    the gateway cannot be reached", "  130  interrupted with Ctrl-C"):
        assert line in shown.stdout


def test_it_knows_its_version() -> None:
    assert python("-m", "cli.main", "--version").stdout == f"chatmill {version()}\n"
