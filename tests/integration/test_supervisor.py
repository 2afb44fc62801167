"""Services that end, hang and leave children behind, and the supervisor that keeps them running."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cli.child import ChildFailed
from cli.log_file import LogFile
from cli.program import DemoModel, Program
from cli.supervisor import Backoff, Supervisor

#: Says when its handlers are in place; what follows decides how it takes SIGTERM.
SAY_READY = "print('ready', flush=True)\nwhile True: signal.pause()"
OBEDIENT = f"import signal\n{SAY_READY}"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SAY_READY}"
#: Writes when it was asked to stop, in nanoseconds, and takes its time.
ORDERLY = f"""
import signal, sys, time
def stop(*_):
    print("asked", time.monotonic_ns(), flush=True)
    time.sleep(0.2)
    print("ended", time.monotonic_ns(), flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, stop)
{SAY_READY}
"""
#: Has a child that ignores SIGTERM, and says its number.
PARENT = f"""
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print("child", child.pid, flush=True)
{SAY_READY}
"""


class Reports:
    """What the supervisor said, and a way to wait for it."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._new = asyncio.Event()

    def __call__(self, text: str) -> None:
        self.texts.append(text)
        self._new.set()

    async def until(self, part: str) -> str:
        """The first report that contains `part`."""
        async with asyncio.timeout(20):
            while True:
                for text in self.texts:
                    if part in text:
                        return text
                self._new.clear()
                await self._new.wait()


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest_asyncio.fixture
async def supervisor(reports: Reports) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(report=reports, backoff=Backoff(first_s=0.02, last_s=0.1))
    yield supervisor
    supervisor.kill()
    await supervisor.stop(within_s=1)


def program(folder: Path, name: str, source: str, *, ready: str = "ready", grace_s: float = 5.0) -> Program:
    """A Python program that is ready once it has written `ready`."""

    async def probe(log: LogFile) -> bool:
        return ready in log.text()

    argv = [sys.executable, "-c", source]
    return Program(name, argv, LogFile(folder / f"{name}.log"), dict(os.environ), grace_s, probe)


def alive(pid: int) -> bool:
    """Whether the process exists and is not merely waiting for its parent to take notice of its end."""
    try:
        os.kill(pid, 0)
        return not Path("/proc/self").exists() or ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


async def until_dead(pid: int) -> None:
    """An orphan that was killed has no parent here that could be told of its end."""
    async with asyncio.timeout(5):
        while alive(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def number_after(word: str, log: LogFile) -> int:
    return int(log.text().split(word)[1].split()[0])


async def test_runs_in_a_session_of_its_own(supervisor: Supervisor, tmp_path: Path) -> None:
    await supervisor.start(program(tmp_path, "service", OBEDIENT))
    pid = supervisor.pids["service"]
    assert os.getsid(pid) == pid != os.getsid(0)


async def test_starts_a_killed_service_again(supervisor: Supervisor, reports: Reports, tmp_path: Path) -> None:
    await supervisor.start(program(tmp_path, "service", OBEDIENT))
    first = supervisor.pids["service"]
    os.kill(first, 9)
    assert "killed by SIGKILL" in await reports.until("starting it again")
    await reports.until("runs again")
    assert alive(supervisor.pids["service"])
    assert supervisor.pids["service"] != first


async def test_rests_longer_after_each_end() -> None:
    backoff = Backoff()
    assert [backoff.pause_s(ends) for ends in (1, 2, 3, 7, 8, 10_000)] == [0.5, 1, 2, 30, 30, 30]


async def test_shows_the_log_of_a_service_that_keeps_dying(
    supervisor: Supervisor, reports: Reports, tmp_path: Path
) -> None:
    flag = tmp_path / "broken"
    source = f"import os, sys\nif os.path.exists({str(flag)!r}): sys.exit('no such queue')\n{OBEDIENT}"
    await supervisor.start(program(tmp_path, "service", source))
    flag.touch()
    os.kill(supervisor.pids["service"], 9)
    text = await reports.until("failure 3 in a row")
    assert "no such queue" in text
    assert not any("no such queue" in earlier for earlier in reports.texts[: reports.texts.index(text)])
    flag.unlink()
    await reports.until("runs again")


async def test_a_first_start_that_fails_says_why(supervisor: Supervisor, tmp_path: Path) -> None:
    with pytest.raises(ChildFailed, match=r"service ended \(exit code 1\)") as failure:
        await supervisor.start(program(tmp_path, "service", "import sys; sys.exit('bad luck')"))
    assert failure.value.log == "bad luck"
    assert supervisor.pids == {}


async def test_a_program_that_does_not_exist_says_so(supervisor: Supervisor, tmp_path: Path) -> None:
    absent = Program("service", [str(tmp_path / "absent")], LogFile(tmp_path / "service.log"), {}, 1.0)
    with pytest.raises(ChildFailed, match="cannot be started"):
        await supervisor.start(absent)


async def test_stops_in_the_opposite_order_one_after_the_other(supervisor: Supervisor, tmp_path: Path) -> None:
    services = [program(tmp_path, name, ORDERLY) for name in ("first", "second", "third")]
    for service in services:
        await supervisor.start(service)
    assert list(supervisor.pids) == ["third", "second", "first"]
    await supervisor.stop(within_s=10)
    asked = [number_after("asked", service.log) for service in services]
    ended = [number_after("ended", service.log) for service in services]
    assert asked[2] < ended[2] < asked[1] < ended[1] < asked[0] < ended[0]


async def test_stops_in_time_although_nobody_obeys(supervisor: Supervisor, tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        await supervisor.start(program(tmp_path, name, STUBBORN))
    pids = supervisor.pids.values()
    began = time.monotonic()
    await supervisor.stop(within_s=1.5)
    assert time.monotonic() - began < 2.5
    assert not any(map(alive, pids))


async def test_a_killed_service_takes_its_children_along(
    supervisor: Supervisor, reports: Reports, tmp_path: Path
) -> None:
    service = program(tmp_path, "service", PARENT)
    await supervisor.start(service)
    orphan = number_after("child", service.log)
    assert alive(orphan)
    os.kill(supervisor.pids["service"], 9)
    await reports.until("starting it again")
    await until_dead(orphan)


async def test_a_stopped_service_takes_its_children_along(supervisor: Supervisor, tmp_path: Path) -> None:
    service = program(tmp_path, "service", PARENT)
    await supervisor.start(service)
    orphan = number_after("child", service.log)
    await supervisor.stop(within_s=5)
    await until_dead(orphan)


async def test_kill_ends_a_slow_stop(supervisor: Supervisor, tmp_path: Path) -> None:
    await supervisor.start(program(tmp_path, "service", STUBBORN, grace_s=60))
    stopping = asyncio.create_task(supervisor.stop(within_s=60))
    await asyncio.sleep(0)
    supervisor.kill()
    async with asyncio.timeout(5):
        await stopping


async def test_a_start_that_is_cancelled_leaves_nothing(supervisor: Supervisor, tmp_path: Path) -> None:
    service = program(tmp_path, "service", PARENT, ready="never said")
    starting = asyncio.create_task(supervisor.start(service))
    async with asyncio.timeout(10):
        while "child" not in service.log.text():  # noqa: ASYNC110 - a file has no event to wait for
            await asyncio.sleep(0.01)
    orphan = number_after("child", service.log)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until_dead(orphan)


async def test_the_demo_model_keeps_its_port_when_it_is_started_again(
    supervisor: Supervisor, reports: Reports, tmp_path: Path
) -> None:
    source = """
import signal, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[-1])))
print("ready on http://127.0.0.1:%d/v1" % server.getsockname()[1], flush=True)
while True: signal.pause()
"""
    demo = DemoModel("demo", [sys.executable, "-c", source], LogFile(tmp_path / "demo.log"), dict(os.environ), 1.0)
    await supervisor.start(demo)
    url = demo.url
    os.kill(supervisor.pids["demo"], 9)
    await reports.until("runs again")
    assert demo.url == url != "http://127.0.0.1:0/v1"
