"""`scripts/up` on machines that lack something, and on one that lacks nothing but chatmill."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
#: All that the scripts need beside a Python.
TOOLS = ("sh", "basename", "cut", "dirname", "head", "sed")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what `scripts/up` needs before anything is installed."""
    copy = tmp_path / "a checkout"
    shutil.copytree(CHECKOUT / "scripts", copy / "scripts")
    for lock in CHECKOUT.glob("requirements*.lock"):
        shutil.copy(lock, copy)
    return copy


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH with the tools and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def up(checkout: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", checkout / "scripts" / "up", "--port", "0"],
        env={name: value for name, value in {**os.environ, **env}.items() if value},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line it wrote to stderr before it gave up."""
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_no_python_is_one_clear_line(checkout: Path, tools: Path) -> None:
    assert "Python 3.11, 3.12 or 3.13 is needed" in refusal(up(checkout, PATH=str(tools), PYTHON=""))
    assert not (checkout / ".venv").exists()


def test_an_old_python_is_one_clear_line(checkout: Path, tools: Path) -> None:
    script(tools / "python3", 'if [ "$1" = -V ]; then echo Python 3.10.13; fi; exit 1')
    line = refusal(up(checkout, PATH=str(tools), PYTHON=""))
    assert "Python 3.11, 3.12 or 3.13 is needed (python3 is Python 3.10.13)" in line
    assert "PYTHON=" in line


def test_a_python_without_venv_is_one_clear_line(checkout: Path, tools: Path, tmp_path: Path) -> None:
    (tmp_path / "ensurepip.py").write_text("raise ImportError\n")
    script(tools / "python3", f"PYTHONPATH='{tmp_path}' exec '{sys.executable}' \"$@\"")
    line = refusal(up(checkout, PATH=str(tools), PYTHON=""))
    assert "has no venv module" in line
    assert "apt install python3." in line


def test_a_folder_in_the_way_is_left_alone(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "mine").touch()
    assert "is in the way" in refusal(up(checkout, PYTHON=sys.executable))
    assert (checkout / ".venv" / "mine").exists()


@pytest.mark.slow
def test_no_package_index_is_one_clear_line(checkout: Path) -> None:
    nowhere = "http://127.0.0.1:9/simple"
    done = up(
        checkout,
        PYTHON=sys.executable,
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL=nowhere,
        PIP_EXTRA_INDEX_URL="",
        PIP_FIND_LINKS="",
        PIP_NO_CACHE_DIR="1",
        PIP_RETRIES="0",
    )
    assert "the package index cannot be reached" in refusal(done)


@pytest.mark.slow
def test_installs_once_and_mends_what_is_broken(checkout: Path) -> None:
    # The package itself is not there, so this ends where it would start.
    first = up(checkout, PYTHON=sys.executable)
    assert "Making .venv" in first.stdout
    assert "Installing" in first.stdout
    assert "cli" in refusal(first)
    assert up(checkout, PYTHON=sys.executable).stdout == ""

    (checkout / ".venv" / "bin" / "python").unlink()
    (checkout / ".venv" / "bin" / "python").symlink_to("/nowhere/python")
    again = up(checkout, PYTHON=sys.executable)
    assert "Making .venv" in again.stdout
    assert "cli" in refusal(again)
