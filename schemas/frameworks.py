"""The names of the agent frameworks, readable without importing any of them."""

from __future__ import annotations

#: (name, label) of the frameworks that ship with chatmill. `none` stands for a session nobody answers.
FRAMEWORK_CHOICES: tuple[tuple[str, str], ...] = (
    ("langgraph", "LangGraph agent with tools"),
    ("echo", "Echo: repeats the message, for tests and as an example"),
    ("none", "No agent: the session only stores messages"),
)

DEFAULT_FRAMEWORK = "langgraph"
NO_FRAMEWORK = "none"
