"""The logs of supervised processes: bounded, and shown without losing or repeating a line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli import log_file
from cli.log_file import LogFile
from cli.log_view import LogView


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogFile:
    monkeypatch.setattr(log_file, "ROTATE_BYTES", 100)
    monkeypatch.setattr(log_file, "TRIM_BYTES", 400)
    return LogFile(tmp_path / "logs" / "worker.log")


def write(log: LogFile, *lines: str) -> None:
    descriptor = log.open()
    os.write(descriptor, "".join(f"{line}\n" for line in lines).encode())
    os.close(descriptor)


def test_shows_what_the_last_process_wrote(log: LogFile) -> None:
    write(log, "first")
    write(log, "second", "third")
    assert log.tail() == "second\nthird"
    assert log.tail(lines=1) == "third"
    assert log.path.read_text() == "first\nsecond\nthird\n"


def test_has_nothing_to_show_of_a_process_that_wrote_nothing(log: LogFile) -> None:
    assert log.tail() == ""
    write(log)
    assert log.tail() == ""


def test_moves_a_large_log_aside_when_its_process_starts(log: LogFile) -> None:
    write(log, "x" * 100)
    write(log, "next")
    assert log.path.read_text() == "next\n"
    assert log.path.with_name("worker.log.1").read_text() == "x" * 100 + "\n"


def test_keeps_the_end_of_a_log_that_outgrows_its_bound(log: LogFile) -> None:
    descriptor = log.open()
    os.write(descriptor, b"".join(b"line %03d\n" % number for number in range(100)))
    log.trim()
    os.write(descriptor, b"after\n")
    os.close(descriptor)
    kept = log.path.read_text().splitlines()
    assert kept[-2:] == ["line 099", "after"]
    assert kept[0].startswith("line ")
    assert log.path.stat().st_size <= 110


def test_leaves_a_log_within_its_bound_alone(log: LogFile) -> None:
    write(log, "x" * 300)
    log.trim()
    assert log.path.stat().st_size == 301


def test_the_view_shows_new_whole_lines_with_the_name_of_their_log(log: LogFile) -> None:
    write(log, "before")
    shown: list[str] = []
    view = LogView(log.path.parent, shown.append)
    descriptor = log.open()
    os.write(descriptor, b"one\ntw")
    view.show_new()
    assert shown == ["worker  | one"]
    os.write(descriptor, b"o\n")
    os.close(descriptor)
    write(LogFile(log.path.with_name("gateway.log")), "three")
    view.show_new()
    assert shown[1:] == ["gateway | three", "worker  | two"]


def test_the_view_follows_a_log_that_was_moved_aside(log: LogFile) -> None:
    shown: list[str] = []
    view = LogView(log.path.parent, shown.append)
    write(log, "x" * 100)
    view.show_new()
    write(log, "next")
    view.show_new()
    assert shown[1:] == ["worker  | next"]
