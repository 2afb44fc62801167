"""Logs: one line an event, JSON for programs or readable for people, without keys and without what people wrote.

Everything is rendered in one place: our own events, and those of libraries that use the standard library's logging.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

MASK = "***"

#: Fields that hold what people or models wrote; they are shown at level debug only.
PRIVATE_FIELDS = frozenset({"message", "messages", "text", "content", "system", "response"})
#: Fields that are secret by their name.
SECRET_FIELDS = frozenset({"api_key", "authorization", "password", "secret", "token", "tool_secrets"})

#: Libraries that tell at level info what is no news: every request to a model, every plug-in found.
CHATTY = ("httpx2", "httpcore2", "alembic")

#: What a person looks for first in a line of JSON.
_FIRST = ("timestamp", "level", "event")
_SECRETS = (
    (re.compile(r"\bsk-[A-Za-z0-9_-]{6,}"), f"sk-{MASK}"),
    (re.compile(r"\b(bearer)\s+[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\1 {MASK}"),
    (re.compile(r"\b([a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s@]+@", re.IGNORECASE), rf"\1:{MASK}@"),
    (
        re.compile(
            r"\b((?:api[_-]?key|access[_-]?token|password|secret|token)[\"']?\s*[=:]\s*[\"']?)[^\s&,;\"'}]+", re.I
        ),
        rf"\1{MASK}",
    ),
)


def configure_logging(level: str = "info", format: str = "auto") -> None:  # noqa: A002 - the setting's name
    """Send every log line of this process to stderr.

    `level` is `debug`, `info`, `warning` or `error`; `format` is `json`, `console`, or `auto`: readable if stderr is a
    terminal. Call it once, when the process starts.
    """
    number = logging.getLevelName(level.upper())
    readable = format == "console" or (format == "auto" and sys.stderr.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        # Before redaction: what a traceback quotes is masked as well.
        structlog.processors.format_exc_info,
        *([] if number <= logging.DEBUG else [drop_private]),
        redact,
    ]
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        if readable
        else structlog.processors.JSONRenderer(serializer=_to_json)
    )
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *shared, renderer]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def drop_private(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Leave out what people or models wrote."""
    return {name: value for name, value in event.items() if name not in PRIVATE_FIELDS}


def redact(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Mask whatever looks like a key, a token or a password."""
    return {name: MASK if name in SECRET_FIELDS and value else _masked(value) for name, value in event.items()}


def mask_secrets(text: str) -> str:
    """The text with everything that looks like a key, a bearer token or a password in a URL masked."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return mask_secrets(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(name): MASK if name in SECRET_FIELDS else _masked(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_masked(item) for item in value]
    return mask_secrets(str(value))


def _to_json(event: Any, **options: Any) -> str:
    event = {**{name: event[name] for name in _FIRST if name in event}, **event}
    try:
        return orjson.dumps(event, default=str).decode()
    except TypeError:  # a lone surrogate, or a number beyond 64 bits
        return json.dumps(event, default=str)
