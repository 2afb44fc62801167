"""Do modules of the user's own have the names of ours?

chatmill's packages have plain names. Its folder comes first on the path, so a module of the user's with one of these
names cannot be imported here; wherever that module comes first, chatmill does not work.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cli.check import Check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NAME = "module names"
OURS = ("schemas", "storage", "graph", "handlers", "workers", "gateway", "cli", "demo", "migrations")
CHECKOUT = Path(__file__).resolve().parent.parent


def check_names(config: Path | None) -> list[Check]:
    """Looks along sys.path, in the working directory, and beside the settings file, where tools are imported from."""
    folders = [*map(Path, sys.path), Path.cwd(), *([config.absolute().parent] if config else [])]
    found = [_judge(path, first) for path, first in clashes(folders)]
    return found or [Check.ok(NAME, "no module of yours has the name of one of ours")]


def _judge(path: Path, first: bool) -> Check:
    remedy = f"rename it: {', '.join(OURS)} are taken"
    if first:
        return Check.wrong(NAME, f"{path} is imported instead of ours", remedy)
    return Check.warning(NAME, f"{path} has the name of a package of ours, so tools of yours cannot import it", remedy)


def clashes(folders: Iterable[Path], checkout: Path = CHECKOUT) -> list[tuple[Path, bool]]:
    """Modules and packages in `folders` with a name of ours, and whether they would be imported instead of ours."""
    found: dict[Path, bool] = {}
    first = True
    for folder in folders:
        if folder.resolve() == checkout:
            first = False
        else:
            for path in _namesakes(folder):
                found.setdefault(path.resolve(), first)
    return list(found.items())


def _namesakes(folder: Path) -> Iterator[Path]:
    for name in OURS:
        module = folder / f"{name}.py"
        if module.is_file():
            yield module
        # Without an __init__.py it is no rival: Python takes it only if there is no other package of its name.
        if (folder / name / "__init__.py").is_file():
            yield folder / name
