"""`chatmill up`: everything on one machine, from an empty folder to a served chat, and away again without a trace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.child import Child, ChildFailed, ending
from cli.data_folder import DataFolder
from cli.leftovers import MARK, end_processes
from cli.log_file import LogFile
from cli.log_view import LogView
from cli.ports import LOOPBACK, check_port, free_port
from cli.program import DemoModel, Program, answers_http
from cli.supervisor import Supervisor
from cli.terminal import complain, say
from cli.valkey import Valkey
from schemas.errors import ConfigurationError
from schemas.settings import METRICS_FOLDER_VARIABLE, Settings, load_settings
from workers.metrics_folder import MetricsFolder

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

CHECKOUT = Path(__file__).resolve().parent.parent
#: Everything must be gone 5 s after Ctrl-C. Graces are in seconds; a worker needs longer than it gives its attempts.
STOP_S = 4.2
GATEWAY_GRACE_S = 1.0
ATTEMPT_GRACE_S = 2.0
WORKER_GRACE_S = 4.0
DEMO_GRACE_S = 0.5
#: What each worker process logs once it takes jobs.
WORKER_READY = "worker ready"


def run_up(
    port: int | None = None, data: Path | None = None, *, config: Path | None = None, verbose: bool = False
) -> int:
    """Start everything, serve until Ctrl-C, SIGTERM or SIGHUP, and stop everything. Returns the exit code.

    `port` 0 takes a free one; `config` is the settings file; `verbose` shows all logs in the terminal.
    """
    try:
        settings = load_settings(config)
        folder = DataFolder(data.expanduser().absolute() if data else settings.data_dir)
        folder.prepare()
        folder.lock()
        with contextlib.closing(folder):
            _end_earlier_run(folder)
            up = Up(settings, folder, _checked_port(settings.port if port is None else port), config)
            try:
                asyncio.run(up.run(verbose))
            finally:
                end_processes(up.run_id)
                folder.remove_run()
    except ChildFailed as error:
        complain(f"chatmill: {error}. The end of {error.log_path}:\n{error.log or '(it wrote nothing)'}")
        return 1
    except ConfigurationError as error:
        complain(f"chatmill: {error}")
        return 1
    except KeyboardInterrupt:  # before there was anything to stop
        return 130
    return 0


def _end_earlier_run(folder: DataFolder) -> None:
    """We hold the folder, so whatever an earlier run left behind is an orphan: `up` was killed."""
    run = folder.read_run()
    ended = end_processes(run["run_id"], run.get("pids", {}).values()) if "run_id" in run else 0
    if ended:
        say(f"Ended {ended} processes that an earlier run, killed before it could stop them, had left behind.")


def _checked_port(port: int) -> int:
    port = port or free_port()
    try:
        check_port(port)
    except OSError as error:
        remedy = "gain the right to ports below 1024" if isinstance(error, PermissionError) else "stop what holds it"
        raise ConfigurationError(
            f"port {port} cannot be used ({error.strerror or error}): {remedy}, or choose another one with --port"
        ) from None
    return port


class Up:
    """One run of everything. `run_id` marks every process that it starts."""

    def __init__(self, settings: Settings, folder: DataFolder, port: int, config: Path | None) -> None:
        self.run_id = secrets.token_hex(16)
        self.url = f"http://{LOOPBACK}:{port}"
        self._settings = settings
        self._folder = folder
        self._port = port
        self._own_command = [sys.executable, "-P", "-m", "cli.main", *(["--config", str(config)] if config else [])]
        self._supervisor = Supervisor(report=complain, changed=self._pids_changed)
        self._stop_asked = asyncio.Event()
        self._addresses: dict[str, str] = {}
        self._metrics = MetricsFolder(folder.path / "metrics")
        self._env = {
            # The logs are files, but people read them.
            "CHATMILL_LOG_FORMAT": "console",
            **os.environ,
            MARK: self.run_id,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")])),
            "PYTHONUNBUFFERED": "1",
            "CHATMILL_DATA_DIR": str(folder.path),
            "CHATMILL_URL": self.url,
            "CHATMILL_SHUTDOWN_GRACE_S": str(ATTEMPT_GRACE_S),
            # The gateway's /metrics shows what the workers count.
            METRICS_FOLDER_VARIABLE: str(self._metrics.path),
        }

    async def run(self, verbose: bool) -> None:
        """Start everything and keep it running until a signal asks to stop. Raises ChildFailed if a start fails."""
        self._write_run()
        self._listen_to_signals()
        view = asyncio.create_task(LogView(self._folder.logs, say).run()) if verbose else None
        starting = asyncio.create_task(self._start_all())
        stop_asked = asyncio.create_task(self._stop_asked.wait())
        try:
            await asyncio.wait({starting, stop_asked}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                self._announce()
                await stop_asked
            say("Stopping … (Ctrl-C again: at once)")
        finally:
            starting.cancel()
            await asyncio.wait({starting})
            await self._supervisor.stop(within_s=STOP_S)
            if view is not None:
                view.cancel()
        say("Stopped.")

    async def _start_all(self) -> None:
        self._metrics.prepare()
        if "redis_url" in self._settings.model_fields_set:
            self._publish("redis_url", "REDIS_URL", self._settings.redis_url.get_secret_value())
        else:
            valkey = Valkey(self._folder.path / "valkey", log=self._log("valkey").path, env=self._env)
            await self._supervisor.start(valkey)
            self._publish("redis_url", "REDIS_URL", valkey.url)
        database = self._settings.model_copy(update={"data_dir": self._folder.path}).sqlalchemy_url
        self._publish("database_url", "DATABASE_URL", database)
        await _together(self._migrate(), self._start_demo())
        # In this order, so that the gateway is stopped first.
        await _together(self._supervisor.start(self._worker()), self._supervisor.start(self._gateway()))
        self._publish("url", "CHATMILL_URL", self.url)

    async def _migrate(self) -> None:
        log = self._log("migrate")
        child = await Child.start([*self._own_command, "migrate"], log, env=self._env)
        try:
            code = await child.wait()
        finally:
            await child.end()
        if code != 0:
            raise ChildFailed(f"ended ({ending(code)})", log)

    async def _start_demo(self) -> None:
        if self._settings.has_provider:
            return
        command = [sys.executable, "-P", "-m", "demo"]
        demo = DemoModel("demo", command, self._log("demo"), self._env, DEMO_GRACE_S)
        await self._supervisor.start(demo)
        self._publish("demo_url", "CHATMILL_DEMO_URL", demo.url)

    def _worker(self) -> Program:
        worker = Program("worker", [*self._own_command, "worker"], self._log("worker"), self._env, WORKER_GRACE_S)
        if self._settings.log_level in ("debug", "info"):
            worker.probe = self._worker_is_ready
        return worker

    async def _worker_is_ready(self, log: LogFile) -> bool:
        return log.text().count(WORKER_READY) >= self._settings.processes

    def _gateway(self) -> Program:
        command = [*self._own_command, "gateway", "--host", LOOPBACK, "--port", str(self._port)]
        gateway = Program("gateway", command, self._log("gateway"), self._env, GATEWAY_GRACE_S)
        gateway.probe = lambda _: answers_http(self._port, "/healthz")
        return gateway

    def _log(self, name: str) -> LogFile:
        return LogFile(self._folder.logs / f"{name}.log")

    def _publish(self, name: str, variable: str, address: str) -> None:
        """Tell an address to the services started from now on and to readers of the run file."""
        self._env[variable] = address
        self._addresses[name] = address
        self._write_run()

    def _write_run(self) -> None:
        run: Mapping[str, Any] = {"run_id": self.run_id, "pid": os.getpid(), **self._addresses}
        self._folder.write_run({**run, "pids": self._supervisor.pids})

    def _pids_changed(self) -> None:
        try:
            self._write_run()
        except OSError as error:  # a full disk must not end the supervision
            complain(f"cannot write {self._folder.path}: {error}")

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup asks to outlive the terminal.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._ask_to_stop)

    def _ask_to_stop(self) -> None:
        if self._stop_asked.is_set():
            self._supervisor.kill()
        self._stop_asked.set()

    def _announce(self) -> None:
        model = self._settings.default_model
        say(f"chatmill is up: {self.url}")
        if self._settings.has_provider:
            say(f"  Model:  {model}")
        else:
            say(f"  Model:  {model}, a scripted stand-in; set OPENAI_API_KEY or OPENAI_BASE_URL for a real one")
        say(f"""  Try it: curl -N '{self.url}/v1/jobs?stream=true' -d '{{"message":"What is 17 * 23?"}}'""")
        say(f"  Data:   {self._folder.path} (logs in {self._folder.logs})")
        say(f"  Stop:   Ctrl-C, or kill {os.getpid()}")


async def _together(*starts: Coroutine[Any, Any, None]) -> None:
    """Run them side by side; the first failure ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            for start in starts:
                group.create_task(start)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
