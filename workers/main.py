"""Starts the worker: dramatiq's own command line, with its settings taken from ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from schemas.settings import METRICS_FOLDER_VARIABLE, Settings, environment_name

CHECKOUT = Path(__file__).parent.parent
#: After the grace an attempt still has to be settled; dramatiq must not give up before.
SHUTDOWN_MARGIN_S = 10.0
#: How often an idle thread looks whether it is to end: a shutdown waits for the slowest of them.
THREAD_CHECK_MS = 500
#: Pause before a consumer that lost Redis tries again.
RESTART_DELAY_MS = 1000


def run_worker(settings: Settings) -> int:
    """Run worker processes until SIGTERM or Ctrl-C; returns the exit code.

    The processes read the settings anew from the environment, so what was chosen here is put there.
    """
    _export(settings)
    served = _serve_metrics(settings)
    try:
        return _run(settings)
    finally:
        if served is not None:
            served.terminate()
            served.wait()


def _serve_metrics(settings: Settings) -> subprocess.Popen[bytes] | None:
    """Start the process that serves the metrics of all worker processes, if a port is set for it.

    They share a folder, which whoever started this one may have chosen already, for more than a worker.
    """
    if settings.metrics_port is None:
        return None
    if METRICS_FOLDER_VARIABLE not in os.environ:
        folder = settings.data_dir / "metrics" / f"worker-{settings.metrics_port}"
        os.environ[METRICS_FOLDER_VARIABLE] = str(folder)
        from workers.metrics_folder import MetricsFolder

        MetricsFolder(folder).prepare()
    address = (settings.metrics_host, str(settings.metrics_port))
    path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(  # noqa: S603 - this program itself
        [sys.executable, "-P", "-m", "workers.metrics_server", *address, str(os.getpid())],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _run(settings: Settings) -> int:
    # dramatiq reads these when it is imported.
    os.environ["dramatiq_queue_prefetch"] = str(settings.threads)  # noqa: SIM112 - their spelling
    os.environ["dramatiq_worker_timeout"] = str(THREAD_CHECK_MS)  # noqa: SIM112
    os.environ["dramatiq_restart_delay"] = str(RESTART_DELAY_MS)  # noqa: SIM112
    from dramatiq.cli import HANDLED_SIGNALS, main, make_argument_parser

    # dramatiq would start itself anew at SIGHUP, by a name that is not its own here: a closed terminal ends a worker.
    HANDLED_SIGNALS.discard(signal.SIGHUP)
    signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))

    arguments = make_argument_parser().parse_args(
        [
            "workers.app:set_up",
            "--processes",
            str(settings.processes),
            "--threads",
            str(settings.threads),
            "--worker-shutdown-timeout",
            str(round((settings.shutdown_grace_s + SHUTDOWN_MARGIN_S) * 1000)),
            "--skip-logging",
            # dramatiq puts this first in sys.path. Its default, the working directory, may hold namesakes of ours.
            "--path",
            str(CHECKOUT),
        ]
    )
    return int(main(arguments) or 0)


def _export(settings: Settings) -> None:
    chosen: dict[str, object] = {
        "queue": settings.queue,
        "threads": settings.threads,
        "redis_url": settings.redis_url.get_secret_value(),
        "database_url": settings.sqlalchemy_url,
        "data_dir": settings.data_dir,
    }
    for name in ("config", "demo_url"):
        if (value := getattr(settings, name)) is not None:
            chosen[name] = value
    if settings.log_format == "auto":
        # The processes write into a pipe; whether a person reads it is only seen here.
        chosen["log_format"] = "console" if sys.stderr.isatty() else "json"
    for name, value in chosen.items():
        os.environ[environment_name(name)] = str(value)
