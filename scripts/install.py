"""Makes .venv and fills it from a lock file: `python scripts/install.py requirements.lock`.

Needs nothing but a bare Python. Packages that the lock file does not list stay, so that `scripts/up` does not undo what
`scripts/test` has installed. What was installed is noted in .venv, so that the next run has nothing to do.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
LAUNCHER = VENV / "bin" / "chatmill"
LOG = VENV / "install.log"

#: What an installer writes when it cannot reach the index.
UNREACHABLE = re.compile(
    r"failed to fetch|error sending request|dns error|connection (refused|reset|error)|timed out|max retries"
    r"|newconnectionerror|name resolution|network is unreachable|from versions: none",
    re.IGNORECASE,
)


class InstallError(Exception):
    """A cause and a remedy, in one line."""


def main(lock_name: str) -> None:
    """Install what the lock file `lock_name` in the checkout lists. Raises InstallError."""
    lock = ROOT / lock_name
    with only_one():
        if not in_venv():
            make_venv()
        noted = VENV / f"{lock_name}.installed"
        digest = hashlib.sha256(lock.read_bytes()).hexdigest()
        if not noted.exists() or noted.read_text(encoding="utf-8") != digest:
            install(lock)
            noted.write_text(digest, encoding="utf-8")
        write_launcher()


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Wait for another installation in this checkout to end."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def in_venv() -> bool:
    """Whether this is the Python of .venv; `lib.sh` takes another one only where that is missing or useless."""
    return VENV.exists() and Path(sys.prefix).samefile(VENV)


def can_import(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def make_venv() -> None:
    """Make .venv with the running Python, in place of one that does not work or has an unsuitable Python."""
    version = ".".join(map(str, sys.version_info[:3]))
    if VENV.exists() and any(VENV.iterdir()) and not (VENV / "pyvenv.cfg").exists():
        raise InstallError(f"{VENV} is in the way: it is not a virtual environment; move it elsewhere")
    if not can_import("venv") or not can_import("ensurepip"):
        package = f"python3.{sys.version_info[1]}-venv"
        raise InstallError(
            f"{sys.executable} has no venv module: install it (Debian, Ubuntu: apt install {package}), or name another "
            "Python in the variable PYTHON"
        )
    print(f"Making .venv with Python {version} …", flush=True)
    command: list[str | Path] = [sys.executable, "-m", "venv", "--clear", VENV]
    made = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if made.returncode != 0:
        reason = last_line(made.stdout + made.stderr)
        raise InstallError(f"cannot make {VENV} ({reason}): make {ROOT} writable, or put the checkout elsewhere")


def install(lock: Path) -> None:
    """Install the pinned uv, then with it everything that `lock` lists."""
    count = len(re.findall(r"^\w", lock.read_text(encoding="utf-8"), re.MULTILINE))
    print(f"Installing {count} packages from {lock.name} …", flush=True)
    LOG.unlink(missing_ok=True)
    with_pip: list[str | Path] = [PYTHON, "-m", "pip", "install", "--require-hashes", "--no-input"]
    # Compiled now, once: otherwise all parts compile the same modules side by side when they start, and again each time
    # where Python may not write bytecode.
    with_uv: list[str | Path] = [UV, "pip", "install", "--compile-bytecode", "--require-hashes", "--python", PYTHON]
    if in_venv() and not can_import("pip"):
        run([PYTHON, "-m", "ensurepip"])
    if not has_pinned_uv() and run([*with_pip, "-r", ROOT / "requirements-uv.lock"]) != 0:
        raise InstallError(cause())
    # pip may know a way to the index that uv does not: a mirror in its own configuration.
    if run([*with_uv, "-r", lock]) != 0 and run([*with_pip, "-r", lock]) != 0:
        raise InstallError(cause())


def has_pinned_uv() -> bool:
    pin = re.match(r"uv==(\S+)", (ROOT / "requirements-uv.lock").read_text(encoding="utf-8"))
    if pin is None or not UV.exists():
        return False
    shown = subprocess.run([UV, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603 - ours
    return shown.split()[1:2] == [pin[1]]


def run(command: Sequence[str | Path]) -> int:
    """Run an installer with its output in the log. Its exit code."""
    # A wrong version in the lock must be an error, never the download of another Python.
    env = {**os.environ, "UV_PYTHON_DOWNLOADS": "never", "PIP_USER": "0"}
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"$ {shlex.join(map(str, command))}\n")
        log.flush()
        return subprocess.call(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)  # noqa: S603 - ours


def cause() -> str:
    """Why the installation failed, from its log."""
    text = LOG.read_text(encoding="utf-8", errors="replace")
    if "No space left" in text:
        return f"the disk is full: make room for about 1 GB and try again ({LOG})"
    if re.search(r"hash mismatch|do not match the hashes", text, re.IGNORECASE):
        return f"a package is not the one that the lock file names: try another package index or mirror ({LOG})"
    if re.search(r"platform tag|not a supported wheel|no wheels with a matching", text):
        return f"some package does not exist for this machine: Linux (glibc 2.28 or newer) or macOS is needed ({LOG})"
    if UNREACHABLE.search(text):
        return (
            "the package index cannot be reached: check the network, or name a mirror in PIP_INDEX_URL and "
            f"UV_DEFAULT_INDEX ({LOG})"
        )
    return f"the packages cannot be installed: {last_line(text)} ({LOG})"


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"


def write_launcher() -> None:
    """Write the `chatmill` command: the package stays in the checkout, ahead of anything installed under its names."""
    root, python = shlex.quote(str(ROOT)), shlex.quote(str(PYTHON))
    text = (
        "#!/bin/sh\n"
        f"PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}}\n"
        "export PYTHONPATH\n"
        "# -P: a folder of the same name in the working directory must not be taken for ours.\n"
        f'exec {python} -P -m cli.main "$@"\n'
    )
    if not LAUNCHER.exists() or LAUNCHER.read_text(encoding="utf-8") != text:
        LAUNCHER.write_text(text, encoding="utf-8")
        LAUNCHER.chmod(0o755)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except InstallError as error:
        sys.exit(f"chatmill: {error}")
    except OSError as error:
        sys.exit(f"chatmill: cannot install into {VENV} ({error}): make it writable, or put the checkout elsewhere")
    except KeyboardInterrupt:
        sys.exit(130)
