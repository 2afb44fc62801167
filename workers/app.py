"""What dramatiq's processes load: the broker with its middleware, and the one actor."""

from __future__ import annotations

import sys
from typing import Any

import dramatiq
import structlog
from dramatiq.middleware import CurrentMessage

from schemas.errors import ConfigurationError
from schemas.garbage import settle_in
from schemas.settings import Settings
from workers.broker import ChatBroker
from workers.event_loop import ChatEventLoop
from workers.process import WorkerProcess
from workers.ring import ACTOR_NAME
from workers.startup import EXIT_CONFIG, load_agents, read_settings


def make_broker(settings: Settings) -> ChatBroker:
    """The broker of one worker process. Raises ConfigurationError for a wrong tool or framework.

    All of dramatiq's default middleware is left out on purpose: Retries, TimeLimit, AgeLimit and ShutdownNotifications
    decide about messages what is decided about jobs, in SQL (docs/decisions/).
    """
    handlers, tools = load_agents(settings)
    process = WorkerProcess(settings, handlers, tools)
    broker = ChatBroker(
        settings,
        middleware=[
            ChatEventLoop(),  # the process's one event loop
            process,  # all that lives on it
            CurrentMessage(),  # tells the actor which message it takes
        ],
    )

    async def take(*arguments: Any, **named: Any) -> None:
        message = CurrentMessage.get_current_message()
        assert message is not None
        await process.actor.take((arguments, named) if named else arguments, message.message_id)

    dramatiq.actor(actor_name=ACTOR_NAME, queue_name=settings.queue, broker=broker)(take)
    return broker


def set_up() -> None:
    """Called by dramatiq in each of its processes: read the settings and make this process's broker the global one."""
    try:
        dramatiq.set_broker(make_broker(read_settings()))
        settle_in()
    except ConfigurationError as error:
        structlog.get_logger(__name__).error("the worker cannot start", reason=str(error))
        sys.exit(EXIT_CONFIG)
