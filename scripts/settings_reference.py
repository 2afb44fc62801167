"""Writes docs/settings.md from the settings' own descriptions: `python -m scripts.settings_reference [--check]`.

With `--check` nothing is written; the exit code is 1 if the file is not what it should be.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from schemas.models import ModelEntry
from schemas.settings import FrameworkEntry, Settings, environment_name

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
COMMAND = "python -m scripts.settings_reference"

#: Settings that are tables of chatmill.toml, each with its own part of the page.
TABLES = ("models", "frameworks", "tools")
#: A file cannot say which file it is.
NOT_IN_THE_FILE = ("config",)

HEAD = f"""\
# Settings

<!-- Written by `{COMMAND}` from schemas/settings.py and schemas/models.py: change the descriptions there. -->

A setting is looked for in this order; the first place that has it wins:

1. the option of a command (`chatmill worker --queue bulk`),
2. the environment (`CHATMILL_QUEUE=bulk`); an empty variable counts as not set, and case does not matter,
3. the file `chatmill.toml` in the working directory, or the one named by `chatmill --config FILE` or `CHATMILL_CONFIG`
   (`queue = "bulk"`),
4. the default.

Settings are read once, when a process starts. An unknown name in the file and a wrong value anywhere are errors: the
process says which setting is wrong, in one line, and ends. Times end in `_s` and are seconds; sizes end in `_bytes`.
Gateway and workers of one deployment should read the same settings.
"""

TABLES_HEAD = """\
## Tables of `chatmill.toml`

A whole file, with one of each:

```toml
model = "gpt-4o-mini"

[models.local]
model = "qwen2.5:14b"
base_url = "http://127.0.0.1:11434/v1"
profile = "ollama"
context_window = 32768

[frameworks.shout]
handler = "my_agents:ShoutHandler"
label = "Says it louder"

[tools]
lookup_order = "my_tools:lookup_order"
```

Dotted paths are `module:name`; modules beside `chatmill.toml` are found. [tools.md](tools.md) has complete examples of
both. The gateway reads the names only; the workers import the modules when they start.
"""

MODELS_TEXT = """\
A model that jobs may name. A job's `model` is the table's name. Without a key in the environment a model with a
`base_url` is called with the key `none`, which local servers accept.
"""

FRAMEWORKS_TEXT = """\
An agent framework of your own. Sessions and jobs name it in `agent_framework`.
"""

TOOLS_TEXT = """\
One line a tool: `name = "module:attribute"`. The attribute is a `schemas.tool.Tool`, or a function without arguments
that returns one. The tool's own `name` must be the same.
"""


def main(arguments: list[str]) -> int:
    """Write or check the page. Returns the exit code."""
    page = reference()
    if "--check" not in arguments:
        REFERENCE.write_text(page, encoding="utf-8")
        return 0
    if REFERENCE.is_file() and REFERENCE.read_text(encoding="utf-8") == page:
        return 0
    print(f"docs/settings.md is not up to date: run `{COMMAND}`", file=sys.stderr)
    return 1


def reference() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, names in sections().items():
        rows = [_setting_row(name) for name in names if name not in TABLES]
        parts.append(_table(title, ("Variable", "In the file", "Default", "Meaning"), rows))
    parts.append(TABLES_HEAD)
    parts.append(_entry_table("[models.<name>]", ModelEntry, MODELS_TEXT))
    parts.append(_entry_table("[frameworks.<name>]", FrameworkEntry, FRAMEWORKS_TEXT))
    parts.append(f"### `[tools]`\n\n{TOOLS_TEXT}")
    return "\n".join(parts)


def sections() -> dict[str, list[str]]:
    """The settings in order, under the comments that divide the class."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in inspect.getsource(Settings).splitlines():
        if heading := re.fullmatch(r" {4}# ([A-Z].*[^.])", line):
            title = heading[1]
        elif (field := re.match(r" {4}(\w+): ", line)) and field[1] in Settings.model_fields:
            found.setdefault(title, []).append(field[1])
    return found


def _setting_row(name: str) -> tuple[str, ...]:
    field = Settings.model_fields[name]
    in_the_file = "" if name in NOT_IN_THE_FILE else f"`{name}`"
    return f"`{environment_name(name)}`", in_the_file, _default(field), _meaning(Settings, name)


def _entry_table(name: str, model: type[BaseModel], text: str) -> str:
    rows = [
        (f"`{field}`", "required" if info.is_required() else _default(info), _meaning(model, field))
        for field, info in model.model_fields.items()
    ]
    return _table(f"`{name}`", ("Key", "Default", "Meaning"), rows, level=3, text=text)


def _table(
    title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, level: int = 2, text: str = ""
) -> str:
    lines = [f"{'#' * level} {title}", ""]
    if text:
        lines += [text]
    lines += [_line(columns), _line(("---",) * len(columns)), *map(_line, rows), ""]
    return "\n".join(lines)


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None:
        return ""
    return f"`{value:g}`" if isinstance(value, float) and value < 1e5 else f"`{value}`"


def _meaning(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    text = field.description or _comment(model, name)
    return " ".join([text, *_limits(field)])


def _comment(model: type[BaseModel], name: str) -> str:
    """What the `#:` comment before a field says."""
    match = re.search(rf"((?: {{4}}#: .*\n)+) {{4}}{name}: ", inspect.getsource(model))
    if match is None:
        raise SystemExit(f"{model.__name__}.{name} has neither a description nor a comment")
    return " ".join(line.strip().removeprefix("#: ") for line in match[1].splitlines())


def _limits(field: FieldInfo) -> Iterator[str]:
    """The values a setting takes, as a sentence."""
    choices = [choice for option in (field.annotation, *get_args(field.annotation)) for choice in _choices(option)]
    if choices:
        yield f"One of {', '.join(f'`{choice}`' for choice in choices)}."
    limits = {
        name: getattr(rule, name) for rule in field.metadata for name in ("ge", "gt", "le") if hasattr(rule, name)
    }
    if "ge" in limits and "le" in limits:
        yield f"{limits['ge']} to {limits['le']}."
    elif "ge" in limits:
        yield f"At least {limits['ge']}."
    elif "gt" in limits:
        yield f"More than {limits['gt']}."


def _choices(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
