"""A process of the stage can be ended in all the ways there are, and never outlives whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.chaos.part import Part, PartFailed
from tests.chaos.process_faults import children, processes

ROOT = Path(__file__).parents[2]
#: Says what is ready, and has a child, as a worker has.
PROGRAM = """\
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print('{"event": "worker ready", "worker": "host-%d-abc"}' % os.getpid(), flush=True)
file = os.open("file", os.O_WRONLY | os.O_CREAT)
while True:
    time.sleep(0.05)
    try:
        os.write(file, b"x")
        print("written", flush=True)
    except OSError as error:
        print("not written", error.errno, flush=True)
"""
STARTER = """\
import asyncio, os, sys
from pathlib import Path
from tests.chaos.test_part import made
async def main():
    part = made(Path(sys.argv[1]))
    part.start()
    await part.ready()
    print(*part.pids(), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
PATIENCE_S = 30.0


def made(folder: Path) -> Part:
    return Part("part", folder, [sys.executable, "-c", PROGRAM], dict(os.environ), lambda line: "ready" in line)


def wait_for(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.02)


async def test_it_is_known_by_its_log_and_killed_with_all_its_children(tmp_path: Path) -> None:
    part = made(tmp_path)
    part.start()
    await part.ready()
    pids = part.pids()
    assert len(pids) == 2
    assert processes(part) == set(pids)
    assert children(part) == pids[:1]
    await part.kill()
    wait_for(lambda: not any(map(psutil.pid_exists, pids)))
    assert not part.running


async def test_it_stands_still_while_it_is_frozen_and_cannot_write_on_a_full_disk(tmp_path: Path) -> None:
    part = made(tmp_path)
    part.start()
    await part.ready()
    try:
        part.freeze()
        wait_for(lambda: psutil.Process(part.pid).status() == psutil.STATUS_STOPPED)
        part.thaw()
        wait_for(lambda: "\nwritten" in part.tail())
        part.limit_files(0)
        wait_for(lambda: part.tail().endswith("not written 27\n"))
        part.limit_files(-1)
        wait_for(lambda: part.tail().endswith("\nwritten\n"))
    finally:
        await part.kill()


async def test_a_process_that_ends_before_it_is_ready_is_told_of_with_its_log(tmp_path: Path) -> None:
    part = Part("part", tmp_path, [sys.executable, "-c", "print('no')"], dict(os.environ), lambda line: False)
    part.start()
    with pytest.raises(PartFailed, match="never got ready"):
        await part.ready()
    assert await part.ended() == 0
    assert "no" in part.tail()


def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
    )
    assert starter.stdout is not None
    with starter.stdout as stdout:
        pids = [int(pid) for pid in stdout.readline().split()]
    assert len(pids) == 2
    starter.send_signal(signal.SIGKILL)
    starter.wait(PATIENCE_S)
    wait_for(lambda: not any(map(psutil.pid_exists, pids)))
