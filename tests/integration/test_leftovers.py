"""Processes that a killed `up` left behind: all of them are found, and nobody else's."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import leftovers
from cli.leftovers import MARK, end_processes, marked_processes

#: Ignores SIGTERM, and so does the child that it starts in a session of its own.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[1:] == ["parent"]:
    child = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, start_new_session=True)
    child.stdout.readline()
print("ready", flush=True)
while True: time.sleep(60)
"""


@pytest.fixture
def run_id() -> Iterator[str]:
    run_id = secrets.token_hex(16)
    yield run_id
    end_processes(run_id)


def start(script: Path, run_id: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Run STUBBORN until it has said that it is ready."""
    script.write_text(STUBBORN)
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments], env={**os.environ, MARK: run_id}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
    return process


def test_finds_children_whose_parent_is_dead(run_id: str, tmp_path: Path) -> None:
    parent = start(tmp_path / "script.py", run_id, "parent")
    parent.kill()
    parent.wait()
    (child,) = marked_processes(run_id)
    assert child != parent.pid
    assert end_processes(run_id, [parent.pid]) == 1
    assert marked_processes(run_id) == set()


def test_leaves_everybody_else_alone(run_id: str, tmp_path: Path) -> None:
    ours = start(tmp_path / "script.py", run_id)
    other = start(tmp_path / "script.py", "another run")
    try:
        # As if the number that was written down had been used again for somebody else's process.
        assert end_processes(run_id, [other.pid, os.getpid()]) == 1
        assert ours.wait() == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_asks_before_it_kills(run_id: str) -> None:
    source = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print(flush=True); signal.pause()"
    )
    process = subprocess.Popen([sys.executable, "-c", source], env={**os.environ, MARK: run_id}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
    end_processes(run_id, [process.pid])
    assert process.wait() == 7


def test_reads_what_ps_shows_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = """\
   10 /usr/bin/python -m cli.main worker HOME=/nowhere CHATMILL_RUN_ID=abc LANG=C
   11 /usr/bin/python -m cli.main worker HOME=/nowhere CHATMILL_RUN_ID=abcd LANG=C
   12 valkey-server CHATMILL_RUN_ID=abc
   13 (zombie)
"""
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=listing))
    assert leftovers._marked_by_ps(f"{MARK}=abc") == {10, 12}
