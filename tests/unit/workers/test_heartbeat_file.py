"""The file by which a worker process shows that it lives."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.heartbeat import WorkerHeartbeat
from tests.unit.schemas.test_heartbeat import WELL
from workers.heartbeat_file import HeartbeatFile, find_files

CHECKOUT = Path(__file__).resolve().parents[3]
SIGN = WorkerHeartbeat.model_validate(WELL)


WRITES = """
import sys
from pathlib import Path
from schemas.heartbeat import WorkerHeartbeat
from workers.heartbeat_file import HeartbeatFile
HeartbeatFile(Path(sys.argv[1])).write(WorkerHeartbeat.model_validate_json(sys.argv[2]))
"""


def dead_process(data: Path) -> int:
    """A process that has written its file and ended without taking it away; its number."""
    writer = subprocess.Popen([sys.executable, "-c", WRITES, str(data), SIGN.model_dump_json()], cwd=CHECKOUT)
    assert writer.wait(30) == 0
    return writer.pid


def test_a_file_is_private_whole_and_of_a_living_process(tmp_path: Path) -> None:
    file = HeartbeatFile(tmp_path)
    for running in range(3):
        file.write(SIGN.model_copy(update={"running": running}))
        (found,) = find_files(tmp_path)
        assert (found.pid, found.alive) == (str(os.getpid()), True)
        assert found.heartbeat is not None
        assert found.heartbeat.running == running
    (path,) = (tmp_path / "workers").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    file.remove()
    assert find_files(tmp_path) == []


def test_the_file_of_a_dead_process_is_known_and_goes_at_the_next_write_of_a_living_one(tmp_path: Path) -> None:
    pid = dead_process(tmp_path)
    (found,) = find_files(tmp_path)
    assert (found.pid, found.alive) == (str(pid), False)
    file = HeartbeatFile(tmp_path)
    file.write(SIGN)
    assert [one.pid for one in find_files(tmp_path)] == [str(os.getpid())]
    file.remove()


def test_the_number_of_a_dead_process_may_be_somebody_elses_by_now(tmp_path: Path) -> None:
    dead_process(tmp_path)
    (path,) = (tmp_path / "workers").glob("*.json")
    path.rename(path.with_name("1.json"))  # process 1 lives
    (found,) = find_files(tmp_path)
    assert (found.pid, found.alive) == ("1", False)


def test_looking_does_not_take_a_file_from_its_writer(tmp_path: Path) -> None:
    file = HeartbeatFile(tmp_path)
    file.write(SIGN)
    for _ in range(3):
        assert find_files(tmp_path)[0].alive
        file.write(SIGN)
    file.remove()


def test_a_folder_that_cannot_be_written_to_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "workers").write_text("a file where the folder should be")
    with pytest.raises(OSError):
        HeartbeatFile(tmp_path).write(SIGN)
    assert find_files(tmp_path) == []


def test_a_folder_that_is_not_there_has_no_workers(tmp_path: Path) -> None:
    assert find_files(tmp_path / "nowhere") == []
