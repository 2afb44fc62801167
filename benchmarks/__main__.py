"""`scripts/bench`: start everything, measure side by side, print JSON and a table."""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
from pathlib import Path
from typing import Any

import orjson
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.claims import measure_claims
from benchmarks.first_text import measure_first_text
from benchmarks.load import measure_load
from benchmarks.recovery import measure_recovery
from benchmarks.stack import running_stack
from benchmarks.throughput import measure_throughput


def main() -> int:
    """Parse the arguments, measure, print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=("cost", "claims", "recovery"),
        default="cost",
        help="cost: beside the bare model; claims: SQL with a long past; recovery: after kill -9 (%(default)s)",
    )
    parser.add_argument("--finished", type=int, default=1_000_000, help="claims: jobs of the past (%(default)s)")
    parser.add_argument("--queued", type=int, default=10_000, help="claims: jobs that wait (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=5, help="recovery: workers killed (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="first texts measured (default: %(default)s)")
    parser.add_argument("--chats", type=int, default=100, help="chats at once (default: %(default)s)")
    parser.add_argument("--words", type=int, default=100, help="words of each of them (default: %(default)s)")
    parser.add_argument("--pace", type=int, default=50, help="ms between two words (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1000, help="jobs for the throughput (default: %(default)s)")
    parser.add_argument("--only", choices=("first-text", "load", "throughput"), help="measure only this")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    report = asyncio.run(_measure(options))
    encoded = orjson.dumps(report, option=orjson.OPT_INDENT_2)
    if options.json is not None:
        options.json.write_bytes(encoded + b"\n")
    _print_table(report, Console())
    print(encoded.decode())
    return 0


async def _measure(options: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {
        "machine": {
            "cores": psutil.cpu_count(),
            "python": platform.python_version(),
            "load_before": round(psutil.getloadavg()[0], 2),
        }
    }
    if options.what == "claims":
        for kind in ("sqlite", "postgresql"):
            title = f"{kind}, {options.finished:,} finished and {options.queued:,} queued"
            report[title] = await measure_claims(kind, options.finished, options.queued)
        return report
    async with running_stack() as stack:
        if options.what == "recovery":
            report["from kill -9 to the next attempt"] = await measure_recovery(stack, options.kills)
            return report
        if options.only in (None, "first-text"):
            report["first text, idle"] = await measure_first_text(stack, options.rounds)
        if options.only in (None, "load"):
            name = f"{options.chats} chats, {options.pace} ms between words"
            report[name] = await measure_load(stack, options.chats, options.words, options.pace)
        if options.only in (None, "throughput"):
            report["throughput"] = await measure_throughput(stack, options.jobs)
    return report


def _print_table(report: dict[str, Any], console: Console) -> None:
    for title, section in report.items():
        table = Table(title=title, title_justify="left")
        table.add_column("")
        table.add_column("")
        for name, value in _flat(section):
            table.add_row(name, str(value))
        console.print(table)


def _flat(section: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in section.items():
        if isinstance(value, dict):
            rows.extend(_flat(value, f"{prefix}{name}: "))
        else:
            rows.append((prefix + name, value))
    return rows


if __name__ == "__main__":
    sys.exit(main())
