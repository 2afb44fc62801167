"""Doing the same to several things that were named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cli.failure import CommandFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cli.options import Options


async def one_by_one(
    options: Options, path: str, ids: Sequence[str], done: str, as_json: bool, body: Mapping[str, Any] | None = None
) -> int:
    """POST to `path` with each id in place of `{}`, and print what became of it; one that is refused stops no other.

    Returns the exit code. Raises GatewayUnreachable.
    """
    from cli.client import Refused
    from cli.screen import Screen

    screen, code = Screen(), 0
    async with options.client() as client:
        for one in ids:
            try:
                answer = await client.post(path.format(one), body)
            except Refused as error:
                screen.complain(f"{one}: {error}")
                code = CommandFailed.exit_code
                continue
            if as_json:
                screen.json(answer)
            else:
                screen.line(f"{one}  {done}")
    return code
