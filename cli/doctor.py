"""`chatmill doctor`: what is wrong, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.failure import CommandFailed
from cli.options import Options
from cli.run import run

if TYPE_CHECKING:
    from cli.check import Check
    from cli.screen import Screen
    from schemas.settings import Settings

_STYLES = {"ok": "green", "warning": "yellow", "wrong": "bold red"}


def doctor(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Check everything chatmill needs: Redis, database, migrations, model, clocks, gateway, module names.

    Says of each whether it is ok, a warning or wrong, and what to do. Exit code 1 if anything is wrong.
    """
    run(_doctor(context.obj, as_json))


async def _doctor(options: Options, as_json: bool) -> int:
    from cli.screen import Screen

    settings, source = options.service_settings()
    screen = Screen()
    if source is not None:
        screen.note(f"[{source}]")
    found = await _examine(options, settings)
    healthy = all(check.status != "wrong" for check in found)
    if as_json:
        screen.json({"ok": healthy, "checks": found})
    else:
        _show(screen, found)
    return 0 if healthy else CommandFailed.exit_code


async def _examine(options: Options, settings: Settings) -> list[Check]:
    from cli.check_clocks import check_clocks
    from cli.check_database import check_database
    from cli.check_gateway import check_gateway
    from cli.check_models import check_models
    from cli.check_names import check_names
    from cli.check_redis import check_redis

    return [
        *await check_redis(settings),
        *await check_database(settings),
        *await check_clocks(settings),
        *await check_models(settings),
        *await check_gateway(options.gateway_url()),
        *check_names(settings.config),
    ]


def _show(screen: Screen, found: list[Check]) -> None:
    width = max(len(check.name) for check in found)
    for check in found:
        screen.line(f"{check.status:<7}  {check.name:<{width}}  {check.message}", style=_STYLES[check.status])
        if check.remedy:
            screen.line(f"{'':<7}  {'':<{width}}  → {check.remedy}")
