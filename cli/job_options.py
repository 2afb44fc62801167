"""Options that say how a message is to be answered, shared by the commands that ask."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.failure import WrongUsage

if TYPE_CHECKING:
    from collections.abc import Sequence

Model = Annotated[str | None, typer.Option(metavar="NAME", help="The model that answers.")]
System = Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt.")]
Tools = Annotated[
    list[str] | None, typer.Option("--tool", metavar="NAME", help="A tool it may use, not all; repeatable; '': none.")
]
Framework = Annotated[str | None, typer.Option(metavar="NAME", help="The agent framework.")]
Language = Annotated[str | None, typer.Option(metavar="TAG", help="The user's language, as in pt-BR.")]
Params = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="A model parameter, as in temperature=0; repeatable."),
]


def asked_fields(
    *,
    model: str | None,
    system: str | None,
    tools: Sequence[str] | None,
    framework: str | None,
    language: str | None,
    params: Sequence[str] | None,
) -> dict[str, Any]:
    """The fields of a job or a session that these options set. Raises WrongUsage."""
    fields = {
        "model": model,
        "system": system,
        "tools": None if tools is None else [name for name in tools if name],
        "agent_framework": framework,
        "language": language,
        "parameters": parse_parameters(params or ()) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def parse_parameters(pairs: Sequence[str]) -> dict[str, Any]:
    """`name=value` pairs as an object; a value is JSON, or else a text. Raises WrongUsage."""
    parameters: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise WrongUsage(f"--param: {pair!r} is not of the form name=value")
        try:
            parameters[name] = json.loads(value)
        except ValueError:
            parameters[name] = value
    return parameters
