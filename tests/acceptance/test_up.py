"""`chatmill up` as a newcomer meets it: real processes, signals and curl."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import httpx2

from cli.leftovers import marked_processes
from cli.ports import LOOPBACK
from tests.acceptance.running_up import COMMAND, START_TIMEOUT_S, Up, environment, until

STOP_TIMEOUT_S = 5.0
#: The demo model says a word in 30 ms, so this keeps a worker busy for longer than it has when everything stops.
WORDS = 150
LONG_MESSAGE = f"[words={WORDS}]"
LONG_ANSWER = " ".join(f"word{number}" for number in range(1, WORDS + 1))


async def refused(*options: str, **more: str) -> str:
    """What `chatmill up` prints to stderr when it does not start."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *options,
        env=environment(**more),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(START_TIMEOUT_S):
        shown, complaint = await process.communicate()
    assert process.returncode not in (0, None)
    assert shown == b""
    return complaint.decode()


async def submit(up: Up, message: str) -> str:
    """The id of a job that was accepted."""
    async with httpx2.AsyncClient(base_url=up.url, timeout=30) as client:
        response = await client.post("/v1/jobs", json={"message": message})
        assert response.status_code == 202, response.text
        return str(response.json()["id"])


async def result(up: Up, job_id: str) -> dict[str, Any]:
    """The job once it has ended."""
    async with httpx2.AsyncClient(base_url=up.url, timeout=90) as client:
        response = await client.get(f"/v1/jobs/{job_id}", params={"wait": "60"})
        assert response.status_code == 200, response.text
        job: dict[str, Any] = response.json()
        return job


async def first_text(up: Up, job_id: str) -> None:
    """Return once the job says something."""
    async with (
        httpx2.AsyncClient(base_url=up.url, timeout=30) as client,
        client.stream("GET", f"/v1/jobs/{job_id}/events") as response,
    ):
        async for line in response.aiter_lines():
            if line == "event: text":
                return
    raise AssertionError("the stream ended without a text")


async def paste(shell: str, line: str) -> str:
    """What a shell shows when `line` is pasted into it."""
    process = await asyncio.create_subprocess_exec(shell, "-c", line, stdout=-1, stderr=-1)
    shown, errors = await process.communicate()
    assert process.returncode == 0, errors
    return shown.decode()


async def stop_by_ctrl_c(up: Up) -> None:
    """Everything must be gone in time, without a word about it."""
    began = time.monotonic()
    up.signal(signal.SIGINT)
    assert await up.wait() == 0
    assert time.monotonic() - began < STOP_TIMEOUT_S
    assert up.processes() == set()
    assert not (up.data / "run.json").exists()


async def test_serves_the_printed_line_stops_in_time_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async with Up(tmp_path / "data") as up:
        (line,) = re.findall(r"^\s*Try it: (.*)$", up.output, re.MULTILINE)
        assert line.startswith("curl -N 'http://")
        for shell in filter(shutil.which, ("sh", "bash", "zsh")):
            kinds = re.findall(r"^event: (\w+)$", await paste(shell, line), re.MULTILINE)
            assert kinds[:2] == ["queued", "started"]
            assert {"text", "tool"} < set(kinds)
            assert kinds[-1] == "final"

        complaint = await refused("--port", "0", "--data", str(up.data))
        assert complaint.count("\n") == 1
        assert f"already running at {up.url}" in complaint

        job_id = await submit(up, LONG_MESSAGE)
        await first_text(up, job_id)
        await stop_by_ctrl_c(up)
    assert up.output.endswith("Stopped.\n")
    assert "starting it again" not in up.output

    async with Up(tmp_path / "data") as up:
        job = await result(up, job_id)
        assert job["result"]["text"] == LONG_ANSWER
        # An orderly stop is nobody's failure.
        assert job["failures"] == 0


async def test_starts_again_what_was_killed_and_ends_what_a_killed_up_left_behind(tmp_path: Path) -> None:
    async with Up(tmp_path / "data") as up:
        for service in ("worker", "valkey", "demo", "gateway"):
            old = up.run["pids"][service]
            os.kill(old, signal.SIGKILL)
            await until(lambda: f"{service} runs again" in up.output, 30, lambda: up.output)  # noqa: B023 - awaited here
            assert f"{service} ended (killed by SIGKILL)" in up.output
            assert up.read_run()["pids"][service] != old
        job_id = await submit(up, LONG_MESSAGE)
        await first_text(up, job_id)

        up.kill()
        await up.wait()
        left = up.processes()
        assert len(left) >= 4
        async with Up(tmp_path / "data") as again:
            assert up.processes() == set()
            assert f"Ended {len(left)} processes" in again.output
            assert (await result(again, job_id))["result"]["text"] == LONG_ANSWER


async def test_uses_the_redis_it_is_told_to_and_stops_at_once_when_asked_twice(
    tmp_path: Path, redis_url: str, namespace: str
) -> None:
    async with Up(tmp_path / "data", REDIS_URL=redis_url, CHATMILL_NAMESPACE=namespace) as up:
        assert "valkey" not in up.run["pids"]
        assert up.run["redis_url"] == redis_url
        await first_text(up, await submit(up, LONG_MESSAGE))
        up.signal(signal.SIGHUP)
        await until(lambda: "Stopping" in up.output)
        began = time.monotonic()
        up.signal(signal.SIGINT)
        await up.wait()
        assert time.monotonic() - began < 1.5
        assert up.processes() == set()


async def test_can_be_stopped_while_it_starts(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--port", "0", "--data", str(tmp_path / "data"), env=environment(), stdout=-1, stderr=-1
    )
    started = tmp_path / "data" / "logs" / "migrate.log"
    await until(started.exists, START_TIMEOUT_S)
    run_id = json.loads((tmp_path / "data" / "run.json").read_text())["run_id"]
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()
    assert errors == b""
    assert process.returncode == 0
    assert marked_processes(run_id) == set()


async def test_a_busy_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as holder:
        port = holder.getsockname()[1]
        complaint = await refused("--port", str(port), "--data", str(tmp_path / "data"))
    assert complaint.count("\n") == 1
    assert f"port {port} cannot be used" in complaint
    assert "--port" in complaint


async def test_an_unusable_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    complaint = await refused("--port", "0", "--data", str(tmp_path / "data"))
    assert complaint.count("\n") == 1
    assert f"the data folder {tmp_path / 'data'} cannot be used" in complaint
    assert "--data" in complaint


async def test_a_database_that_is_away_is_named(tmp_path: Path) -> None:
    away = "postgresql://somebody:secret@127.0.0.1:1/chats"
    complaint = await refused("--port", "0", "--data", str(tmp_path / "data"), DATABASE_URL=away)
    assert "migrate ended" in complaint
    assert "127.0.0.1" in complaint
    assert "secret" not in complaint
