"""From the name of a framework to the handler that answers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from typing import Any

from handlers.base import BaseAgentHandler
from handlers.dotted_path import load_object
from schemas.agent_session import AgentSession
from schemas.errors import ConfigurationError, InvalidRequest
from schemas.frameworks import ENTRY_POINT_GROUP, FRAMEWORK_CHOICES, NO_FRAMEWORK

__all__ = ["BUILT_IN_HANDLERS", "ENTRY_POINT_GROUP", "FRAMEWORK_CHOICES", "HandlerFactory", "get_agent_handler"]

#: Where each framework that ships with chatmill lives; imported at its first use, since LangGraph takes a second.
BUILT_IN_HANDLERS: Mapping[str, str] = {
    "langgraph": "handlers.langgraph_handler:LangGraphHandler",
    "echo": "handlers.echo_handler:EchoHandler",
}


class HandlerFactory:
    """Makes handlers; knows the built-in frameworks, the user's own by dotted path, and those of installed packages.

    Raises ConfigurationError when it is made, in one line, if a path leads nowhere, a class is not a handler or a name
    is taken.
    """

    def __init__(self, frameworks: Mapping[str, str] | None = None) -> None:
        self._own: dict[str, type[BaseAgentHandler]] = {}
        self._used: set[type[BaseAgentHandler]] = set()
        for name, path in (frameworks or {}).items():
            setting = f"frameworks.{name}"
            self._add(name, load_object(path, setting=setting), setting)
        for entry_point in entry_points(group=ENTRY_POINT_GROUP):
            setting = f"the entry point {entry_point.name!r} of {_distribution(entry_point)}"
            self._add(entry_point.name, load_object(entry_point.value, setting=setting), setting)

    @property
    def names(self) -> list[str]:
        """The frameworks a session may name, `none` left out."""
        return sorted({*BUILT_IN_HANDLERS, *self._own})

    def handler_for(self, session: AgentSession) -> BaseAgentHandler | None:
        """A new handler for the session's framework, or None if nobody is to answer in it.

        Raises InvalidRequest if nobody knows the framework.
        """
        name = session.agent_framework
        own = self._own.get(name)
        if own is None and name not in BUILT_IN_HANDLERS and name != NO_FRAMEWORK:
            raise _unknown(name, self.names)
        handler = own(session) if own is not None else get_agent_handler(session)
        if handler is not None:
            self._used.add(type(handler))
        return handler

    def uses_model(self, framework: str) -> bool:
        """Whether the framework's agents call the job's model; False for one that nobody knows."""
        found = self._class_of(framework)
        return found is not None and found.uses_model

    def continues(self, framework: str) -> bool:
        """Whether the framework's agents go on from what earlier attempts kept; False for one that nobody knows."""
        found = self._class_of(framework)
        return found is not None and found.continues

    def preload(self) -> None:
        """Import and prepare every framework now, so that no first message waits and no event loop is held up."""
        built_in = [load_object(path, setting="agent_framework") for path in BUILT_IN_HANDLERS.values()]
        for handler_class in (*built_in, *self._own.values()):
            handler_class.prepare()

    async def close(self) -> None:
        """Release what the handlers made here share on the running event loop."""
        for handler_class in self._used:
            await handler_class.close_shared()

    def _class_of(self, framework: str) -> type[BaseAgentHandler] | None:
        found = self._own.get(framework)
        if found is None and (path := BUILT_IN_HANDLERS.get(framework)) is not None:
            found = load_object(path, setting="agent_framework")
        return found

    def _add(self, name: str, found: Any, setting: str) -> None:
        if not (isinstance(found, type) and issubclass(found, BaseAgentHandler)):
            raise ConfigurationError(f"{setting}: {found!r} is not a subclass of handlers.base.BaseAgentHandler")
        if name in self._own or name in BUILT_IN_HANDLERS or name == NO_FRAMEWORK:
            raise ConfigurationError(f"{setting}: the name {name!r} is taken; choose another")
        if isabstract(found):
            missing = ", ".join(sorted(found.__abstractmethods__))
            raise ConfigurationError(f"{setting}: {found.__name__} does not define {missing}; add what is missing")
        self._own[name] = found


def get_agent_handler(session: AgentSession) -> BaseAgentHandler | None:
    """A new handler of a built-in framework for the session, or None for `none`.

    Raises InvalidRequest for any other name; HandlerFactory knows those of the user's own.
    """
    name = session.agent_framework
    if name == NO_FRAMEWORK:
        return None
    path = BUILT_IN_HANDLERS.get(name)
    if path is None:
        raise _unknown(name, list(BUILT_IN_HANDLERS))
    handler: BaseAgentHandler = load_object(path, setting="agent_framework")(session)
    return handler


def _unknown(name: str, known: list[str]) -> InvalidRequest:
    return InvalidRequest(
        f"there is no agent framework {name!r}; known are: {', '.join(known)}", field="agent_framework"
    )


def _distribution(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist is not None else "an installed package"
