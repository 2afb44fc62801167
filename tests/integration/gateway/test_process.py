"""The gateway as a process: how it starts, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.job_event import EventId
from schemas.settings import Settings
from tests.integration.gateway.client import GatewayClient

ROOT = Path(__file__).parents[3]
PROGRAM = "import sys; from gateway.server import run_gateway; from schemas.settings import load_settings; "
START_TIMEOUT_S = 30.0


class GatewayProcess:
    """`run_gateway` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.url = ""
        self.log: list[dict[str, Any]] = []

    async def read_log(self, until: str) -> dict[str, Any]:
        """Read log lines up to one whose event is `until`."""
        assert self.process.stderr is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            while line := await self.process.stderr.readline():
                self.log.append(json.loads(line))
                if self.log[-1]["event"] == until:
                    return self.log[-1]
        raise AssertionError(f"the log ended before {until!r}: {self.log}")

    async def end(self) -> tuple[int, float]:
        """Tell it to end; its exit code, and how many seconds it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            code = await self.process.wait()
        return code, time.monotonic() - began


async def start(settings: Settings, **environment: str) -> asyncio.subprocess.Process:
    assert settings.database_url is not None
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CHATMILL_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM + "sys.exit(run_gateway(load_settings()))",
        cwd=ROOT,
        env={
            **inherited,
            "PYTHONPATH": str(ROOT),
            "REDIS_URL": settings.redis_url.get_secret_value(),
            "DATABASE_URL": settings.database_url.get_secret_value(),
            "CHATMILL_NAMESPACE": settings.namespace,
            "CHATMILL_DEMO_URL": "http://127.0.0.1:9/v1",
            "CHATMILL_PORT": "0",
            "CHATMILL_LOG_FORMAT": "json",
            **environment,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@asynccontextmanager
async def running(settings: Settings, **environment: str) -> AsyncIterator[GatewayProcess]:
    gateway = GatewayProcess(await start(settings, **environment))
    try:
        gateway.url = (await gateway.read_log("the gateway listens"))["url"]
        yield gateway
    finally:
        if gateway.process.returncode is None:
            gateway.process.kill()
        await gateway.process.communicate()


async def test_it_serves_at_the_address_it_names_and_ends_at_once_with_open_streams(settings: Settings) -> None:
    async with running(settings) as gateway, GatewayClient(gateway.url) as client:
        job = await client.create_job()
        async with (
            client.follow(job["id"]) as reader,
            client.stream("POST", "/v1/jobs?stream=true", json={"message": "secret words"}) as streamed,
        ):
            await reader.until("queued")
            await streamed.until("queued")
            waiting = asyncio.create_task(client.get(f"/v1/jobs/{job['id']}?wait=60"))
            # A client that has asked and reads nothing.
            host, port = gateway.url.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port))) as silent:
                silent.sendall(f"GET /v1/jobs/{job['id']}/events HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
                code, took = await gateway.end()
            assert await reader.rest() == []
            assert await streamed.rest() == []
            assert reader.fold.last_id == EventId(0, 1)
            assert (await waiting)["status"] == "queued"
        await gateway.read_log("the gateway stops")
    assert code == 0
    assert took < 1.5
    assert not any("secret words" in json.dumps(line) for line in gateway.log)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"CHATMILL_HOST": "0.0.0.0"}, "does not listen on 0.0.0.0"),
        ({"DATABASE_URL": "mysql://localhost/x"}, "mysql is not supported"),
        ({"REDIS_URL": "http://localhost"}, "REDIS_URL is wrong"),
    ],
)
async def test_what_keeps_it_from_starting_is_told_in_one_line(
    settings: Settings, environment: dict[str, str], said: str
) -> None:
    process = await start(settings, **environment)
    out, error = await process.communicate()
    assert process.returncode == 1
    assert out == b""
    assert said in error.decode()
    assert error.count(b"\n") == 1


async def test_a_busy_port_is_told_with_its_remedy(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        process = await start(settings, CHATMILL_PORT=str(busy.getsockname()[1]))
        _, error = await process.communicate()
    assert process.returncode == 1
    assert b"Address already in use" in error
    assert b"CHATMILL_PORT" in error
    assert error.count(b"\n") == 1
