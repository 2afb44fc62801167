"""What every process that answers jobs does first: settings, logs, and the agents with their tools."""

from __future__ import annotations

import sys

from handlers.factory import HandlerFactory
from handlers.tools import ToolRegistry, build_registry
from schemas.logs import configure_logging
from schemas.settings import Settings, load_settings

#: As sysexits.h numbers a configuration error.
EXIT_CONFIG = 78


def read_settings() -> Settings:
    """The settings, with the logs set up by them and the user's modules within reach. Raises ConfigurationError."""
    settings = load_settings()
    configure_logging(settings.log_level, settings.log_format)
    if settings.config is not None:
        sys.path.append(str(settings.config.parent))  # where the user's own tools and frameworks lie
    return settings


def load_agents(settings: Settings) -> tuple[HandlerFactory, ToolRegistry]:
    """Every agent framework, loaded, and the tools. Raises ConfigurationError for a wrong tool or framework."""
    handlers = HandlerFactory({name: entry.handler for name, entry in settings.frameworks.items()})
    handlers.preload()
    return handlers, build_registry(settings.tools)
