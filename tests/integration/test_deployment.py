"""What docker-compose.yml and the Dockerfile say is tried out, as far as that goes without Docker.

The image is laid out in a folder; migration, gateway, worker and health check run in it with the commands and the
environment of the compose file, against a Valkey with its configuration and a real PostgreSQL.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError
from ruamel.yaml import YAML

from cli.ports import LOOPBACK, free_port
from cli.valkey import Valkey
from schemas.settings import Settings
from tests.documents import CHECKOUT, block, read
from tests.postgres_server import PostgresServer
from workers.main import SHUTDOWN_MARGIN_S

PASSWORD = "a-password"
OURS = ("gateway", "worker", "migrate")
READY_TIMEOUT_S = 60.0
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def compose(**variables: str) -> dict[str, Any]:
    """The compose file with its variables filled in as Docker does it."""

    def value(match: re.Match[str]) -> str:
        name, kind, text = match.groups()
        if variables.get(name):
            return variables[name]
        assert kind == "-", f"{name} is not set: {text}"
        return str(text)

    loaded: dict[str, Any] = YAML(typ="safe").load(_VARIABLE.sub(value, read("docker-compose.yml")))
    return loaded


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The compose file as it is with nothing but passwords in .env."""
    return compose(REDIS_PASSWORD=PASSWORD, POSTGRES_PASSWORD=PASSWORD)


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)s", text)
    assert match is not None, text
    return float(match[1])


@pytest.mark.parametrize("missing", ["REDIS_PASSWORD", "POSTGRES_PASSWORD"])
def test_nothing_starts_without_passwords(missing: str) -> None:
    passwords = {"REDIS_PASSWORD": PASSWORD, "POSTGRES_PASSWORD": PASSWORD}
    del passwords[missing]
    with pytest.raises(AssertionError, match=f"{missing} is not set: write it into .env"):
        compose(**passwords)


def test_nothing_is_reachable_from_other_machines(plain: dict[str, Any]) -> None:
    published = [port for service in plain["services"].values() for port in service.get("ports", ())]
    assert len(published) == 2
    assert all(port.startswith(f"{LOOPBACK}:") for port in published)
    assert all(plain["services"][name]["network_mode"] == "host" for name in OURS)
    assert all("CHATMILL_HOST" not in plain["services"][name]["environment"] for name in OURS)


def test_our_services_find_redis_and_the_database_where_they_are_published(plain: dict[str, Any]) -> None:
    services = plain["services"]
    for name in OURS:
        environment = services[name]["environment"]
        assert environment["REDIS_URL"] == f"redis://:{PASSWORD}@{services['valkey']['ports'][0].rpartition(':')[0]}/0"
        address = services["postgres"]["ports"][0].rpartition(":")[0]
        assert environment["DATABASE_URL"] == f"postgresql://chatmill:{PASSWORD}@{address}/chatmill"


def test_everything_that_goes_on_restarts_has_a_health_check_and_a_version(plain: dict[str, Any]) -> None:
    for name, service in plain["services"].items():
        if name != "migrate":
            assert service["restart"] == "unless-stopped"
            assert seconds(service["stop_grace_period"]) > 0
            assert service["healthcheck"]["test"]
        if name not in OURS:
            assert re.search(r":\d+", service["image"]), "a new major version must not come by itself"


def test_the_workers_health_is_what_its_heartbeat_says_and_is_asked_with_patience(plain: dict[str, Any]) -> None:
    check = plain["services"]["worker"]["healthcheck"]
    assert check["test"] == ["CMD", "chatmill", "heartbeat"]
    # A worker counts as well for 15 s after its last sign of life; one that starts has not polled yet.
    assert seconds(check["interval"]) >= 10
    assert seconds(check["timeout"]) >= 5
    assert seconds(check["start_period"]) >= 20


def test_docker_waits_longer_than_dramatiq_and_dramatiq_longer_than_the_grace(plain: dict[str, Any]) -> None:
    grace_s: float = Settings.model_fields["shutdown_grace_s"].default
    dramatiq_s = grace_s + SHUTDOWN_MARGIN_S
    assert "CHATMILL_SHUTDOWN_GRACE_S" not in plain["services"]["worker"]["environment"]
    assert grace_s < dramatiq_s < seconds(plain["services"]["worker"]["stop_grace_period"])


def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile."""
    lines = re.sub(r"\\\n", "", re.sub(r"(?m)^#.*\n", "", read("Dockerfile")))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines.splitlines() if line)]


def test_the_image_holds_every_package_and_nothing_that_is_ignored() -> None:
    copied = [rest.split()[0] for name, rest in dockerfile() if name == "COPY" and not rest.startswith("--from")]
    packages = tomllib.loads(read("pyproject.toml"))["tool"]["setuptools"]["packages"]
    assert {package.partition(".")[0] for package in packages} <= set(copied)
    allowed = {line.removeprefix("!") for line in read(".dockerignore").splitlines() if line.startswith("!")}
    assert allowed == set(copied)


def test_the_image_does_not_run_as_root_and_installs_only_what_is_locked() -> None:
    instructions = dockerfile()
    assert [rest for name, rest in instructions if name == "USER"] == ["10001"]
    installs = [rest for name, rest in instructions if name == "RUN" and "pip install" in rest]
    assert len(installs) == 1
    assert "--require-hashes -r /requirements.lock" in installs[0]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The files of the image, laid out as the Dockerfile says."""
    folder = tmp_path / "opt" / "chatmill"
    folder.mkdir(parents=True)
    for name, rest in dockerfile():
        source, *target = rest.split()
        if name == "COPY" and target and (CHECKOUT / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(CHECKOUT / source, folder / target[0], ignore=ignored)
        elif name == "COPY" and target == ["./"]:
            shutil.copy(CHECKOUT / source, folder)
    return folder


@pytest_asyncio.fixture
async def valkey(plain: dict[str, Any], tmp_path: Path) -> AsyncIterator[Valkey]:
    """A Valkey with the configuration of the compose file."""
    folder = tmp_path / "valkey"
    folder.mkdir()
    content = plain["configs"]["valkey"]["content"]
    (folder / "valkey.conf").write_text(content)
    options = dict(line.split(" ", 1) for line in content.splitlines())
    del options["requirepass"]  # it takes the password from the file that it finds
    async with Valkey(folder, options=options) as server:
        yield server


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[None]:
    """The user and the database that the compose file makes."""
    address = postgres_server.url("postgres").replace("+psycopg", "")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE ROLE chatmill LOGIN")
        connection.execute("CREATE DATABASE chatmill OWNER chatmill")
        yield
        connection.execute("DROP DATABASE chatmill WITH (FORCE)")
        connection.execute("DROP ROLE chatmill")


class Host:
    """Runs services of the compose file in the image's folder, as Docker would on this machine."""

    def __init__(self, services: Mapping[str, Any], image: Path, folder: Path) -> None:
        self._services = services
        self._image = image
        self.folder = folder

    def environment(self, name: str) -> dict[str, str]:
        image = dict(pair.split("=", 1) for key, rest in dockerfile() if key == "ENV" for pair in rest.split())
        image |= {"PYTHONPATH": str(self._image), "CHATMILL_DATA_DIR": str(self.folder / "data")}
        given = {key: str(value) for key, value in self._services[name]["environment"].items()}
        from_dotenv = {"OPENAI_API_KEY": "a-key"}
        return {"PATH": os.environ["PATH"], **image, **from_dotenv, **given}

    async def start(self, name: str) -> asyncio.subprocess.Process:
        assert any("exec python -P -m cli.main" in rest for key, rest in dockerfile() if key == "RUN")
        with (self.folder / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "cli.main", *self._services[name]["command"]),
                cwd=self.folder,
                env=self.environment(name),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @asynccontextmanager
    async def running(self, name: str) -> AsyncIterator[None]:
        """The service for the time of the context; at its end it must stop within its grace, by itself."""
        process = await self.start(name)
        try:
            yield
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(seconds(self._services[name]["stop_grace_period"])):
                assert await process.wait() == 0, self.log(name)
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()

    async def is_healthy(self, name: str) -> bool:
        """Whether the service's health check says so."""
        how, program, *arguments = self._services[name]["healthcheck"]["test"]
        assert (how, program in ("python", "chatmill")) == ("CMD", True)
        command = ["-P", "-m", "cli.main", *arguments] if program == "chatmill" else arguments
        check = await asyncio.create_subprocess_exec(
            *(sys.executable, *command), cwd=self.folder, env=self.environment(name), stderr=subprocess.DEVNULL
        )
        return await check.wait() == 0

    async def healthy(self, name: str) -> None:
        """Wait until it is."""
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                if await self.is_healthy(name):
                    return
                await asyncio.sleep(0.05)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")


@pytest.fixture
def host(valkey: Valkey, database: None, postgres_server: PostgresServer, image: Path, tmp_path: Path) -> Host:
    file = compose(
        REDIS_PASSWORD=PASSWORD,
        REDIS_PORT=str(valkey.port),
        POSTGRES_PASSWORD=PASSWORD,
        POSTGRES_PORT=str(postgres_server.port),
        CHATMILL_PORT=str(free_port()),
    )
    folder = tmp_path / "app"
    folder.mkdir()
    # As in an image that builds on ours and brings a framework of its own.
    (folder / "chatmill.toml").write_text(block("docs/tools.md", "framework-settings"))
    (folder / "my_agents.py").write_text(block("docs/tools.md", "framework"))
    return Host(file["services"], image, folder)


async def test_the_services_migrate_answer_and_stop_as_the_compose_file_says(host: Host) -> None:
    migration = await host.start("migrate")
    assert await migration.wait() == 0, host.log("migrate")
    assert not await host.is_healthy("gateway")
    assert not await host.is_healthy("worker")
    async with host.running("worker"), host.running("gateway"):
        await host.healthy("gateway")
        await host.healthy("worker")
        url = f"http://{LOOPBACK}:{host.environment('gateway')['CHATMILL_PORT']}"
        accepted = await call(f"{url}/v1/jobs", {"message": "Hello", "agent_framework": "shout"})
        ended = await call(f"{url}/v1/jobs/{accepted['id']}?wait=30")
        assert ended["status"] == "finished", (ended, host.log("worker"))
        assert ended["result"]["text"] == "HELLO"


async def call(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()

    def send() -> Any:
        with urllib.request.urlopen(url, data, timeout=60) as response:
            return json.load(response)

    return await asyncio.to_thread(send)


async def test_valkey_keeps_what_it_is_given_and_asks_for_the_password(valkey: Valkey, plain: dict[str, Any]) -> None:
    assert valkey.url.startswith(f"redis://:{PASSWORD}@")
    async with Redis.from_url(valkey.url, decode_responses=True) as redis:
        settings = await redis.config_get("appendonly", "maxmemory-policy")
        assert settings == {"appendonly": "yes", "maxmemory-policy": "noeviction"}
    async with Redis(port=valkey.port, retry=Retry(NoBackoff(), 0)) as stranger:
        with pytest.raises(AuthenticationError):
            await stranger.ping()
    assert plain["services"]["valkey"]["environment"]["REDISCLI_AUTH"] == PASSWORD


def test_the_database_is_asked_whether_it_is_ready_as_pg_isready_understands_it(
    plain: dict[str, Any], database: None, postgres_server: PostgresServer
) -> None:
    how, program, *arguments = plain["services"]["postgres"]["healthcheck"]["test"]
    assert (how, program) == ("CMD", "pg_isready")
    binary = postgres_server._binaries / program
    command = [binary, *arguments, f"--port={postgres_server.port}"]
    assert subprocess.run(command, check=False).returncode == 0
    assert subprocess.run([binary, *arguments, f"--port={free_port()}"], check=False).returncode == 2
