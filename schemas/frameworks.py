"""The names of the agent frameworks, readable without importing any of them."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

#: (name, label) of the frameworks that ship with chatmill. `none` stands for a session nobody answers.
FRAMEWORK_CHOICES: tuple[tuple[str, str], ...] = (
    ("langgraph", "LangGraph agent with tools"),
    ("echo", "Echo: repeats the message, for tests and as an example"),
    ("none", "No agent: the session only stores messages"),
)

DEFAULT_FRAMEWORK = "langgraph"
NO_FRAMEWORK = "none"

#: Installed packages add frameworks under this group of entry points.
ENTRY_POINT_GROUP = "chatmill.frameworks"


@cache
def installed_frameworks() -> tuple[str, ...]:
    """Names of the frameworks that installed packages bring, found without importing them."""
    return tuple(sorted(entry_point.name for entry_point in entry_points(group=ENTRY_POINT_GROUP)))
