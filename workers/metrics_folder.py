"""The folder in which processes of one machine share their metrics, as prometheus_client's multiprocess mode does it.

Each process writes files of its own, named by its process id, in a folder that PROMETHEUS_MULTIPROC_DIR names before
prometheus_client is imported. What dead processes have counted is added up in one file for each type, so that sums
never fall and the folder does not grow; their gauges go.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

#: As prometheus_client names them: a type, for gauges their mode, and the process id.
_FILE = re.compile(r"^(?P<kind>counter|histogram|gauge_[a-z]+)_(?P<pid>[0-9]+)\.db$")
#: Stands in the place of the process id.
_GONE = "gone"


class MetricsFolder:
    """One such folder. Several processes may read it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Make it, empty. Only for whoever knows that nobody writes there yet. Raises OSError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in self.path.glob("*.db"):
            file.unlink(missing_ok=True)

    def expose(self) -> bytes:
        """The metrics of all processes in Prometheus's text format. Raises OSError."""
        with self._held():
            self._fold_dead()
            registry = CollectorRegistry()
            MultiProcessCollector(registry, path=str(self.path))  # type: ignore[no-untyped-call] # not typed
            return generate_latest(registry)

    def _fold_dead(self) -> None:
        """Add up what the dead have counted. Cut off in the middle, it loses counts, which reads as a restart."""
        dead: dict[str, list[Path]] = defaultdict(list)
        for file in self.path.glob("*.db"):
            match = _FILE.match(file.name)
            if match is not None and not _alive(int(match["pid"])):
                dead[match["kind"]].append(file)
        for kind, files in dead.items():
            if kind.startswith("gauge"):
                _remove(files)
            else:
                self._fold(kind, files)

    def _fold(self, kind: str, files: list[Path]) -> None:
        gone = self.path / f"{kind}_{_GONE}.db"
        sums: dict[str, float] = defaultdict(float)
        # One that was killed before it wrote anything leaves an empty file, which the library cannot read.
        for file in [*filter(_has_content, files), *([gone] if gone.exists() else [])]:
            for key, value, _, _ in MmapedDict.read_all_values_from_file(str(file)):  # type: ignore[no-untyped-call]
                sums[key] += value
        new = gone.with_suffix(".new")
        new.unlink(missing_ok=True)
        written = MmapedDict(str(new))  # type: ignore[no-untyped-call]
        for key, value in sums.items():
            written.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]
        written.close()  # type: ignore[no-untyped-call]
        _remove(files)
        new.replace(gone)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Two readers must not fold at once."""
        with (self.path / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _has_content(file: Path) -> bool:
    return file.stat().st_size > 0


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
