"""The command line against everything real: processes, sockets, a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.unit.cli.command import Ended, run_chatmill

CHECKOUT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-P", "-m", "cli.main"]
#: A busy test machine may be many times slower than an idle one.
PATIENCE_S = 60.0
#: The demo model says a word in 30 ms: long enough to be interrupted.
WORDS = 120
LONG_ANSWER = " ".join(f"word{number}" for number in range(1, WORDS + 1))


@dataclass(frozen=True)
class Up:
    """A running `chatmill up` and the environment in which commands find it."""

    data: Path
    env: dict[str, str]

    def pid(self, part: str) -> int:
        return int(json.loads((self.data / "run.json").read_text())["pids"][part])

    def popen(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen([*COMMAND, *arguments], env=self.env, cwd=self.data, text=True, **options)

    def run(self, *arguments: str, stdin: str = "") -> Ended:
        """Run a command to its end inside this process: a process of its own takes a second to start."""
        with patch.dict(os.environ, self.env, clear=True):
            return run_chatmill(*arguments, stdin=stdin)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    told = ("CHATMILL_", "OPENAI_", "REDIS_URL", "DATABASE_URL")
    env = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    data = tmp_path_factory.mktemp("up") / "data"
    data.mkdir()
    running = Up(data, {**env, "PYTHONPATH": str(CHECKOUT), "CHATMILL_DATA_DIR": str(data)})
    process = running.popen("up", "--port", "0", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0)
    assert process.stdout is not None
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if "Stop:" in line:
                break
        else:
            pytest.fail("".join(said))
        yield running
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        process.stdout.close()


def test_a_message_is_answered_with_its_tool_calls_as_notes_and_stays_to_be_looked_at(up: Up) -> None:
    asked = up.run("submit", "What is 17 * 23?", "--follow")
    assert (asked.code, "391" in asked.out) == (0, True)
    assert asked.err == '[calculator {"expression":"17 * 23"}]\n[calculator: 391]\n'

    (job,) = read_lines(up.run("jobs", "--json", "--limit", "1").out)
    assert job["status"] == "finished"
    followed = up.run("follow", job["id"])
    assert (followed.code, followed.out) == (0, asked.out)
    events = read_lines(up.run("follow", job["id"], "--json").out)
    assert [events[0]["kind"], events[1]["kind"], events[-1]["kind"]] == ["queued", "started", "final"]
    assert asked.out.rstrip("\n") in up.run("jobs", "show", job["id"]).out
    shown = up.run("sessions", "show", job["session_id"]).out
    assert "user\nWhat is 17 * 23?\n" in shown
    assert "[result: 391]" in shown
    assert up.run("sessions", "delete", job["session_id"]).out == "deleted\n"
    assert up.run("jobs", "show", job["id"]).code == 1


def test_a_conversation_in_lines_keeps_its_session(up: Up) -> None:
    talk = up.run("chat", stdin="My name is Ada.\nWhat is my name?\n/again\n")
    assert talk.code == 0
    assert talk.out.splitlines()[-1].count("Ada") == talk.out.splitlines()[-2].count("Ada") == 1


def test_a_refusal_names_the_field_and_a_failed_job_its_reason(up: Up) -> None:
    refused = up.run("submit", "hi", "--model", "nobody-knows-it")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("chatmill: model: ")
    failed = up.run("submit", "hi", "--follow", "--model", "demo-fault-status-401")
    assert (failed.code, failed.out) == (1, "")
    assert "refuses the key" in failed.err


def test_everything_is_found_healthy_and_services_join_what_runs(up: Up) -> None:
    found = json.loads(up.run("doctor", "--json").out)
    assert [check for check in found["checks"] if check["status"] != "ok"] == []
    assert found["ok"]
    with up.popen("migrate", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as migrating:
        out, err = migrating.communicate(timeout=PATIENCE_S)
    assert (migrating.returncode, list(json.loads(out))) == (0, ["revision"])
    assert "the running `chatmill up`" in err


def test_an_answer_is_whole_although_the_gateway_dies_while_it_comes(up: Up) -> None:
    with up.popen(
        "submit", f"[words={WORDS}]", "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as following:
        assert following.stdout is not None
        begin = following.stdout.read(len("word1 word2 "))
        os.kill(up.pid("gateway"), signal.SIGKILL)
        rest = following.stdout.read()
    assert (following.returncode, begin + rest) == (0, LONG_ANSWER + "\n")


def test_leaving_a_job_says_how_to_come_back_and_lets_it_go_on(up: Up) -> None:
    with up.popen(
        "submit", f"[words={WORDS}]", "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as following:
        assert following.stdout is not None
        begin = following.stdout.read(len("word1 word2 "))
        following.send_signal(signal.SIGINT)
        assert following.stderr is not None
        rest, notes = following.stdout.read(), following.stderr.read()
    assert following.returncode == 130
    come_back = notes.strip().rpartition("chatmill ")[2].removesuffix("]").split()
    assert come_back[0] == "follow"
    later = up.run(*come_back)
    assert (later.code, begin + rest.removesuffix("\n") + later.out) == (0, LONG_ANSWER + "\n")


async def test_ctrl_c_in_a_chat_stops_the_answer_keeps_its_text_and_leaves_at_the_prompt(up: Up) -> None:
    async with terminal(up, "chat") as screen:
        await screen.until("you> ")
        screen.type(f"[words={WORDS}]\n")
        await screen.until("word3")
        screen.type("\x03")
        await screen.until("[cancelled: requested]")
        stopped = screen.text
        await screen.until("you> ", after="[cancelled")
        screen.type("What is 2 + 2?\n")
        await screen.until("[calculator: 4]")
        await screen.until("you> ", after="[calculator: 4]")
        screen.type("/again\n")
        await screen.until("you> ", after="/again")
        screen.type("\x03")
        await screen.until("chatmill chat --session ")
        assert await screen.ended() == 0
    session_id = screen.text.rpartition("--session ")[2].split("]")[0]
    shown = await asyncio.to_thread(up.run, "sessions", "show", session_id, "--json")
    session = json.loads(shown.out)
    partial = next(message for message in session["messages"] if message["status"] == "cancelled")
    assert LONG_ANSWER.startswith(partial["content"])
    seen = stopped.replace("^C", "").replace("[stopping …]", "").replace("\r\n", "").partition("]word1")[2]
    assert ("word1" + seen).startswith(partial["content"])
    answers = [message for message in session["messages"] if message["content"].startswith("2 + 2 = 4")]
    assert len(answers) == 2  # both are kept, as branches
    assert len({message["parent_id"] for message in session["messages"] if message["role"] == "user"}) == 2


def read_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


class Screen:
    """What a terminal shows, and its keyboard."""

    def __init__(self, master: int, process: asyncio.subprocess.Process) -> None:
        self.text = ""
        self._master = master
        self._process = process
        self._changed = asyncio.Event()

    def read(self) -> None:
        self.text += os.read(self._master, 65536).decode(errors="replace")
        self._changed.set()

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    async def until(self, words: str, *, after: str = "") -> None:
        """Wait until the words are shown, behind the last place of `after`."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while words not in self._behind(after):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pytest.fail(f"{words!r} is not on the screen:\n{self.text}")

    def _behind(self, after: str) -> str:
        if not after:
            return self.text
        _, found, rest = self.text.rpartition(after)
        return rest if found else ""

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self._process.wait()


@asynccontextmanager
async def terminal(up: Up, *arguments: str) -> AsyncIterator[Screen]:
    """A command in a terminal of its own, whose keys reach it as a person's would."""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (50, 200))
    # The first terminal that the leader of a new session opens becomes its own.
    in_terminal = ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(slave)]
    process = await asyncio.create_subprocess_exec(
        *in_terminal, *COMMAND, *arguments, env={**up.env, "TERM": "dumb"}, cwd=up.data, start_new_session=True
    )
    screen = Screen(master, process)
    loop = asyncio.get_running_loop()
    loop.add_reader(master, screen.read)
    try:
        yield screen
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        loop.remove_reader(master)
        os.close(slave)  # not earlier: a terminal nobody has open has ended
        os.close(master)
