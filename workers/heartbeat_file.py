"""A worker process's sign of life as a file of its data folder, `workers/<pid>.json`: what a health check looks at.

The file that stands there is locked by the process that wrote it, so a file without a lock is a dead process's, whoever
has its number by now. Each write makes a new file, locks it and puts it in the place of the old one.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from schemas.heartbeat import WorkerHeartbeat

_FOLDER = "workers"


class HeartbeatFile:
    """The file of this process. Every call raises OSError, for instance if the disk is full."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / _FOLDER
        self._path = self._folder / f"{os.getpid()}.json"
        self._held: int | None = None

    def write(self, heartbeat: WorkerHeartbeat) -> None:
        """Put a new sign in the place of the last one, and remove files of processes that died."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp makes it readable to its owner only.
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=".")
        try:
            os.write(descriptor, heartbeat.model_dump_json().encode() + b"\n")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Path(name).replace(self._path)
        except BaseException:
            os.close(descriptor)
            Path(name).unlink(missing_ok=True)
            raise
        self._let_go()
        self._held = descriptor
        for path in self._folder.glob("*.json"):
            if path != self._path:
                _remove_leftover(path)

    def remove(self) -> None:
        """Take the file away: the process ends in order."""
        self._path.unlink(missing_ok=True)
        self._let_go()

    def _let_go(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that stands in the folder."""

    pid: str
    #: Whether its process lives; a process that ended in order leaves no file.
    alive: bool
    #: None if it cannot be read.
    heartbeat: WorkerHeartbeat | None


def find_files(data_dir: Path) -> list[FoundFile]:
    """The files of all worker processes of a data folder, by process number. Raises OSError for one it may not read."""
    found = []
    for path in sorted((data_dir / _FOLDER).glob("*.json")):
        with _opened(path) as descriptor:
            if descriptor is None:
                continue
            try:
                heartbeat = WorkerHeartbeat.model_validate_json(os.read(descriptor, 100_000))
            except ValidationError:
                heartbeat = None
            alive = not _take_lock(descriptor)
            if not alive and not _stands(path, descriptor):
                # It was replaced or removed meanwhile, so its writer was alive a moment ago.
                alive = True
                if not path.exists():
                    continue
            found.append(FoundFile(path.stem, alive, heartbeat))
    return found


def _remove_leftover(path: Path) -> None:
    with _opened(path) as descriptor:
        if descriptor is not None and _take_lock(descriptor) and _stands(path, descriptor):
            path.unlink(missing_ok=True)


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int) -> bool:
    """Whether nobody alive holds the file. The lock goes with the descriptor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stands(path: Path, descriptor: int) -> bool:
    """Whether the open file is still the one at its path."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    opened = os.fstat(descriptor)
    return (there.st_ino, there.st_dev) == (opened.st_ino, opened.st_dev)
