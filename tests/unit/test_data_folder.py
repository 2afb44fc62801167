"""The data folder of `chatmill up`."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cli.data_folder import AlreadyRunning, DataFolder
from schemas.errors import ConfigurationError


def test_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    folder.write_run({"redis_url": "redis://:password@127.0.0.1:1/0"})
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder.path / "run.json").stat().st_mode) == 0o600


def test_a_file_in_its_place_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(ConfigurationError, match=r"cannot be used \(File exists\): .*--data"):
        DataFolder(tmp_path / "data").prepare()


def test_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path), DataFolder(tmp_path)
    first.lock()
    first.write_run({"pid": 17, "url": "http://127.0.0.1:8080"})
    with pytest.raises(AlreadyRunning, match=r"already running at http://127\.0\.0\.1:8080 \(process 17\)"):
        second.lock()
    first.close()
    second.lock()
    second.close()


def test_is_not_held_by_what_its_holder_started(tmp_path: Path) -> None:
    first = DataFolder(tmp_path)
    first.lock()
    source = "import signal\nprint(flush=True)\nsignal.pause()"
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, close_fds=False) as child:
        assert child.stdout is not None
        child.stdout.readline()
        first.close()
        second = DataFolder(tmp_path)
        second.lock()
        second.close()
        child.kill()


def test_a_run_file_that_makes_no_sense_counts_as_none(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    assert folder.read_run() == {}
    for text in ("", "{", "[]", "null", "\x00"):
        (tmp_path / "run.json").write_text(text)
        assert folder.read_run() == {}
