"""The folder of everything `chatmill up` keeps: databases, logs, and who is using it."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

RUN_FILE = "run.json"
LOCK_FILE = "up.lock"


class AlreadyRunning(ConfigurationError):
    """Another `chatmill up` uses this data folder."""


class DataFolder:
    """Readable to its owner only, for it holds passwords and conversations; held by one `up` at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self._lock: IO[str] | None = None

    def prepare(self) -> None:
        """Create the folder. Raises ConfigurationError if it cannot be written to."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.path.stat().st_mode & 0o077:
                self.path.chmod(0o700)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise ConfigurationError(
                f"the data folder {self.path} cannot be used ({error.strerror}): "
                "make it writable or choose another one with --data"
            ) from None

    def lock(self) -> None:
        """Hold the folder until `close()` or the end of this process. Raises AlreadyRunning.

        The lock belongs to an open file that children do not inherit, so it ends with this process, however that ends.
        """
        lock = (self.path / LOCK_FILE).open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            run = self.read_run()
            where = f" at {run['url']}" if "url" in run else ""
            who = f" (process {run['pid']})" if "pid" in run else ""
            raise AlreadyRunning(
                f"chatmill is already running{where}{who} on the data folder {self.path}: "
                "stop it with Ctrl-C there, or choose another folder and port with --data and --port"
            ) from None
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def read_run(self) -> dict[str, Any]:
        """What the run file says; empty if there is none."""
        try:
            run = json.loads((self.path / RUN_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return run if isinstance(run, dict) else {}

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Say who runs here and where, for the command line and for the next `up`. Never seen half written."""
        descriptor, name = tempfile.mkstemp(dir=self.path, prefix=RUN_FILE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(run, file, indent=2)
            file.write("\n")
        Path(name).replace(self.path / RUN_FILE)

    def remove_run(self) -> None:
        (self.path / RUN_FILE).unlink(missing_ok=True)
