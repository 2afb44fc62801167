"""`scripts/chaos`: break everything at random while clients follow, then check that nothing was lost."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.chaos.faults import all_names
from tests.chaos.report import show
from tests.chaos.run import Outcome, run

DATABASES = ("sqlite", "postgresql")


def main() -> int:
    """Run, print the table; 1 if a check failed."""
    options = _parser().parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1_000_000)
    chosen = DATABASES if options.database == "both" else (options.database,)
    folder = Path(tempfile.mkdtemp(prefix="chatmill-chaos-"))
    outcomes: list[Outcome] = []
    try:
        for dialect in chosen:
            (folder / dialect).mkdir()
            work = run(
                folder / dialect,
                dialect,
                seed=seed,
                jobs=options.jobs,
                minutes=options.minutes,
                only=options.only,
                say=lambda line: print(time.strftime("%H:%M:%S"), line, file=sys.stderr, flush=True),
            )
            outcomes += [asyncio.run(work)]
    finally:
        if options.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    show(outcomes, _command(options, seed), Console())
    return 0 if all(outcome.good for outcome in outcomes) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=100, metavar="N", help="jobs asked for (default: %(default)s)")
    parser.add_argument(
        "--minutes", type=float, default=1.0, metavar="M", help="how long faults are made (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="decides what happens; a random one if left out")
    parser.add_argument(
        "--database", choices=(*DATABASES, "both"), default="both", help="(default: %(default)s, one after the other)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=all_names(),
        metavar="FAULT",
        help="only these: " + ", ".join(all_names()),
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder with logs and files, and print where it is"
    )
    return parser


def _command(options: argparse.Namespace, seed: int) -> str:
    words = ["scripts/chaos", f"--jobs {options.jobs}", f"--minutes {options.minutes:g}", f"--seed {seed}"]
    words.append(f"--database {options.database}")
    if options.only:
        words.append("--only " + " ".join(options.only))
    return " ".join([*words, "--keep"])


if __name__ == "__main__":
    sys.exit(main())
