"""What a user might have written: frameworks and tools for the tests to load by dotted path."""

from __future__ import annotations

from handlers.base import BaseAgentHandler
from handlers.echo_handler import EchoHandler
from schemas.tool import Tool

PARAMETERS = {"type": "object", "properties": {}}


class Mine(EchoHandler):
    """A framework of the user's own."""

    prepared = 0
    closed = 0

    @classmethod
    def prepare(cls) -> None:
        cls.prepared += 1

    @classmethod
    async def close_shared(cls) -> None:
        cls.closed += 1


class Unfinished(BaseAgentHandler):
    """A framework whose methods are not written yet."""


ONE = Tool("one", "", PARAMETERS, function=lambda: 1)
TWO = Tool("two", "", PARAMETERS, function=lambda: 2)
THREE = Tool("three", "", PARAMETERS, function=lambda: 3)
SEVERAL = [TWO, THREE]
NOT_A_TOOL = 42


def make_one() -> Tool:
    return ONE


def break_down() -> Tool:
    raise RuntimeError("no database")
