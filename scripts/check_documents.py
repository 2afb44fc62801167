"""Checks that the links of Markdown files lead somewhere, and that no file names a package index or somebody's home.

Prints one line for each fault, as `file:line: fault`, and exits with 1 if there is one. Links to other hosts are not
followed.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent

#: `[text](target)`, `[name]: target`, and the attributes of HTML.
LINK = re.compile(r"""\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\s*\[[^\]]+\]:\s+<?(\S+?)>?(?:\s|$)|(?:href|src)="([^"]+)\"""")
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
ANCHOR = re.compile(r"""<[^>]+\b(?:id|name)="([^"]+)\"""")
FENCE = re.compile(r"^\s*(```|~~~)")
CODE = re.compile(r"`[^`]*`")

#: A lock file or an installer's output must not tie the project to one index, nor a path to one machine.
LEAK = re.compile(
    # The brackets keep this line from finding itself.
    r"//[\w.-]*(?:p[y]pi\.|p[y]thonhosted\.|registry\.n[p]m|n[p]mjs\.)|(?<![\w./~-])/(?:home|Users|root|work)/\w"
)


def main() -> int:
    """Check the files that git knows or would add. Returns the exit code."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],  # noqa: S607 - whichever git there is
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    files = [ROOT / name.decode() for name in listing.stdout.split(b"\0") if name]
    faults = [fault for file in files if file.is_file() for fault in faults_of(file)]
    print("\n".join(faults) or f"{len(files)} files checked")
    return 1 if faults else 0


def faults_of(file: Path) -> Iterator[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:  # not text
        return
    name = file.relative_to(ROOT)
    for number, line in enumerate(lines, start=1):
        if leak := LEAK.search(line):
            yield f"{name}:{number}: names {leak[0]}"
    if file.suffix == ".md":
        for number, line in prose(lines):
            for match in LINK.finditer(CODE.sub("", line)):
                target = next(filter(None, match.groups()))
                if not leads_somewhere(file, target):
                    yield f"{name}:{number}: the link {target} leads nowhere"


def leads_somewhere(file: Path, target: str) -> bool:
    """Whether `target`, found in `file`, is on another host, or a file with that anchor."""
    if re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.IGNORECASE):
        return True
    path, _, anchor = unquote(target).partition("#")
    base = ROOT if path.startswith("/") else file.parent
    destination = base / path.lstrip("/") if path else file
    if not destination.exists():
        return False
    return not anchor or destination.suffix != ".md" or anchor in anchors(destination)


@functools.cache
def anchors(file: Path) -> set[str]:
    """The anchors of a Markdown file, named as GitHub names them."""
    found: set[str] = set()
    for _, line in prose(file.read_text(encoding="utf-8").splitlines()):
        found.update(ANCHOR.findall(line))
        if heading := HEADING.match(line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            again = sum(1 for name in found if re.fullmatch(re.escape(slug) + r"(-\d+)?", name))
            found.add(f"{slug}-{again}" if again else slug)
    return found


def prose(lines: list[str]) -> Iterator[tuple[int, str]]:
    """The numbered lines that are not inside a fenced block of code."""
    fence = ""
    for number, line in enumerate(lines, start=1):
        mark = FENCE.match(line)
        if mark and (not fence or mark[1] == fence):
            fence = "" if fence else mark[1]
        elif not fence:
            yield number, line


if __name__ == "__main__":
    sys.exit(main())
