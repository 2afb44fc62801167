"""`chatmill top`: what it draws, how it fits, and how it ends."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from cli.top import Look
from cli.top_frame import frame
from cli.top_text import seconds, sparkline
from tests.unit.cli.command import chatmill
from tests.unit.cli.fake_gateway import FakeGateway, Reply, Request

CHECKOUT = Path(__file__).resolve().parents[3]
URL = "http://127.0.0.1:8080"
RATES = {"seconds": 55.0, "finished": 110, "dead": 1, "retried": 2, "cancelled": 3}


def a_queue(name: str, **changes: Any) -> dict[str, Any]:
    counts = {"queued": 0, "due": 0, "oldest_due_s": None, "running": 0, "workers": 1}
    return {"name": name, **counts, "paused": False, "pause_reason": None, "paused_at": None, **changes}


def a_worker(name: str, **changes: Any) -> dict[str, Any]:
    times = {"started_at": "2026-01-01T00:00:00.000Z", "at": "2026-01-01T00:00:00.000Z", "age_s": 1.0}
    about = {"worker": name, "host": "h", "pid": 1, "queue": "chat", "running": 3, "threads": 200, "version": "0.1.0"}
    well = {"polled_s_ago": 0.5, "loop_lag_s": 0.0, "closing": False, "faults": []}
    return {**times, **about, **well, **changes}


def a_failure(number: int) -> dict[str, Any]:
    job_id = f"01890000-0000-7000-8000-{number:012}"
    about = {"dead_letter_id": "d", "queue": "chat", "error_code": "timeout", "resolution": None}
    return {"job_id": job_id, "at": "2026-01-01T00:00:00.000Z", **about}


def an_overview(**changes: Any) -> dict[str, Any]:
    lately = {"last_minute": RATES, "last_5_minutes": RATES, "slice_s": 10, "finished_by_slice": [0] * 29 + [5]}
    whole: dict[str, Any] = {"at": "2026-01-01T00:00:00.000Z", "version": "0.1.0", "throughput": lately, "notes": []}
    empty: dict[str, Any] = {"queues": [], "workers": [], "breakers": [], "failures": []}
    return {**whole, **empty, "dead_letters": 0, "quarantine": 0, **changes}


def drawn(look: Look, width: int = 100, height: int | None = None) -> list[str]:
    """The lines of a frame in a terminal of this size."""
    out = io.StringIO()
    console = Console(file=out, width=width, height=height or 100, markup=False, highlight=False, emoji=False)
    console.print(frame(look, width, height))
    return out.getvalue().splitlines()


def crowded() -> dict[str, Any]:
    return an_overview(
        queues=[a_queue(f"queue-{n:03}", queued=n, due=n, oldest_due_s=0.5) for n in range(120)],
        workers=[a_worker(f"worker-{n:03}") for n in range(50)],
        breakers=[
            {
                "name": f"provider-{n}",
                "failures": 5,
                "opened_at": "2026-01-01T00:00:00.000Z",
                "probe_at": None,
                "held": n,
            }
            for n in range(20)
        ],
        failures=[a_failure(n) for n in range(10)],
        notes=["something to know"],
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (140, 40), (60, 12), (40, 8), (20, 3), (300, 100)])
@pytest.mark.parametrize("trouble", [None, "nobody answers"])
def test_a_frame_never_takes_more_than_the_terminal_has(width: int, height: int, trouble: str | None) -> None:
    lines = drawn(Look(URL, crowded(), trouble), width, height)
    assert all(cell_len(line) <= width for line in lines)
    assert 0 < len(lines) <= height
    if height >= 24:
        assert sum("more" in line for line in lines) >= 1
        assert any("failed job" in line for line in lines)


def test_every_row_is_shown_where_there_is_no_bound() -> None:
    text = "\n".join(drawn(Look(URL, crowded())))
    for words in ("queue-119", "worker-049", "provider-19", a_failure(9)["job_id"], "something to know"):
        assert words in text
    assert "more" not in text


def test_what_needs_somebody_comes_first() -> None:
    overview = an_overview(
        queues=[
            a_queue("idle"),
            a_queue("late", queued=1, due=1, oldest_due_s=100.0),
            a_queue("orphan", queued=1, workers=0),
            a_queue("shut", paused=True, pause_reason="the provider is down"),
        ],
        workers=[a_worker("well"), a_worker("ill", faults=["its event loop is blocked for 12 s"])],
        dead_letters=3,
    )
    lines = drawn(Look(URL, overview), width=140)
    starts = [line.split()[0] for line in lines if line.strip()]
    assert starts.index("orphan") < starts.index("late") < starts.index("idle")
    assert starts.index("ill") < starts.index("well")
    text = "\n".join(lines)
    for words in (
        "no worker serves it",
        "paused: the provider is down",
        "blocked for 12 s",
        "1 m 40 s",
        "3 dead letters",
    ):
        assert words in text
    assert "2.0 (1 min)" in text
    assert "open breaker" not in text


def test_without_workers_or_redis_it_says_so() -> None:
    assert "no worker process has given a sign of life" in "\n".join(drawn(Look(URL, an_overview())))
    away = an_overview(workers=None, queues=[a_queue("chat", workers=None)])
    assert "not known: Redis does not answer" in "\n".join(drawn(Look(URL, away)))


def test_nothing_that_others_wrote_reaches_the_terminal_as_a_command() -> None:
    evil = "x\x1b[2J\x1b]0;title\x07\r\ny[bold]z[/bold]"
    overview = an_overview(
        queues=[a_queue("q", paused=True, pause_reason=evil)],
        workers=[a_worker(evil, version=evil, faults=[evil])],
        failures=[{**a_failure(1), "error_code": evil, "resolution": evil}],
        breakers=[{"name": evil, "failures": 1, "opened_at": "2026-01-01T00:00:00.000Z", "probe_at": None, "held": 0}],
        notes=[evil],
    )
    text = "\n".join(drawn(Look(URL, overview, trouble=evil), width=250))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "y[bold]z[/bold]" in text


def test_the_curve_reaches_its_full_height_and_shows_small_values() -> None:
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 1, 1000]) == "▁▂█"
    assert [seconds(value) for value in (None, 0.0, 59.94, 61.0, 3700.0)] == [
        "",
        "0.0 s",
        "59.9 s",
        "1 m 01 s",
        "1 h 01 m",
    ]


async def test_without_a_terminal_one_frame_is_printed_and_without_a_gateway_the_code_says_so() -> None:
    async with FakeGateway(replies={("GET", "/v1/overview"): Reply(200, an_overview())}) as gateway:
        url = gateway.url
        shown = await chatmill("--url", url, "top")
    assert shown.code == 0
    assert shown.out.startswith("chatmill 0.1.0")
    assert "\x1b" not in shown.out
    gone = await chatmill("--url", url, "top", "--once")
    assert (gone.code, gone.out) == (3, "")
    assert "nobody answers" in gone.err


class Terminal:
    """A real `chatmill top` on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self._seen = b""

    def press(self, key: bytes) -> None:
        os.write(self._master, key)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    async def shows(self, words: str) -> None:
        """Wait until it has drawn these words anew."""
        self._seen = b""
        async with asyncio.timeout(20):
            while words.encode() not in self._seen:
                await self._read()

    async def ends(self) -> int:
        async with asyncio.timeout(20):
            while self.process.poll() is None:
                await self._read()
        return self.process.returncode

    async def _read(self) -> None:
        try:
            self._seen += os.read(self._master, 65536)
        except BlockingIOError:
            await asyncio.sleep(0.01)
        except OSError:  # the other side is closed
            await asyncio.sleep(0.01)


@contextmanager
def top_on_a_terminal(url: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-P", "-m", "cli.main", "--url", url, "top", "--interval", "0.2"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "TERM": "xterm"}
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    before = termios.tcgetattr(slave)
    try:
        yield Terminal(process, master)
        assert termios.tcgetattr(slave) == before, "the terminal is as it was"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)
        os.close(slave)


async def test_on_a_terminal_it_goes_on_while_the_gateway_is_away_and_q_leaves() -> None:
    answers: list[dict[str, Any] | None] = [an_overview(queues=[a_queue("first")])]

    def reply(_: Request) -> Reply | None:
        return None if answers[0] is None else Reply(200, answers[0])

    async with FakeGateway(replies={("GET", "/v1/overview"): reply}) as gateway:
        with top_on_a_terminal(gateway.url) as terminal:
            await terminal.shows("first")
            answers[0] = None
            await terminal.shows("nobody answers")
            await terminal.shows("first")
            answers[0] = an_overview(queues=[a_queue("second")])
            await terminal.shows("second")
            terminal.resize(140, 40)
            await terminal.shows("second")
            terminal.press(b"q")
            assert await terminal.ends() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_cleanly_also_while_nobody_answers(number: signal.Signals) -> None:
    async with FakeGateway(replies={("GET", "/v1/overview"): lambda _: None}) as gateway:
        with top_on_a_terminal(gateway.url) as terminal:
            await terminal.shows("nobody answers")
            terminal.process.send_signal(number)
            assert await terminal.ends() == 0
