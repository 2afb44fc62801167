"""`python -m demo`: start the demo model."""

from __future__ import annotations

import argparse
import sys

from demo.app import create_app
from demo.models import FAULTS
from demo.server import DemoServer, inherited, listen


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to end. Returns the exit code: 0, or 1 if the address cannot be used."""
    options = _parser().parse_args(arguments)
    if options.list_faults:
        _print_faults()
        return 0
    try:
        listening = listen(options.host, options.port) if options.fd is None else inherited(options.fd)
    except OSError as error:
        place = f"{options.host}:{options.port}" if options.fd is None else f"descriptor {options.fd}"
        print(f"The demo model cannot listen on {place}: {error}. Try --port 0.", file=sys.stderr)
        return 1
    DemoServer(create_app(first_ms=options.first, pace_ms=options.pace), listening).serve_until_told()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="A scripted OpenAI-compatible model server: canned answers, no network, no key.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port; 0 (the default) picks a free one and prints it")
    parser.add_argument("--fd", type=int, help="use this inherited listening socket in place of host and port")
    parser.add_argument("--pace", type=float, default=30.0, metavar="MS", help="between words (default: %(default)s)")
    parser.add_argument("--first", type=float, default=0.0, metavar="MS", help="before the first word (default: 0)")
    parser.add_argument("--list-faults", action="store_true", help="print the faults a model name can choose, and end")
    return parser


def _print_faults() -> None:
    for fault in FAULTS:
        print(f"demo-fault-{fault.name:28}{fault.about}")
    print(
        "\nAlso demo-fault-status-<400 to 599>, demo-fault-window-<tokens>, and each with -after-tools, -once, -twice,"
    )
    print("-times-<n>: only after tool results, and only so many times for the same text.")


if __name__ == "__main__":
    sys.exit(main())
