"""A process that runs one job and nothing else: `python -m workers.alone_child <process id of its worker>`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import structlog
import uvloop
from redis.exceptions import RedisError

from handlers.factory import HandlerFactory
from handlers.tools import ToolRegistry
from schemas.errors import ConfigurationError
from schemas.logs import configure_logging
from schemas.settings import Settings, environment_name
from storage.lanes import alone_lane
from workers.alone import FOUND_NOTHING, starting_key
from workers.main import SHUTDOWN_MARGIN_S
from workers.open_worker import OpenWorker
from workers.parent_watch import watch_parent
from workers.startup import EXIT_CONFIG, load_agents, read_settings

logger = structlog.get_logger(__name__)


def main(parent: int) -> int:
    """Run the next job of the queue's lane for jobs that run alone; returns the exit code.

    It is 0 if there was one, whatever became of it.
    """
    # For what is wrong with the settings themselves: its worker has said how it logs.
    configure_logging(format=os.environ.get(environment_name("log_format"), "auto"))
    try:
        settings = read_settings()
        handlers, tools = load_agents(settings)
    except ConfigurationError as error:
        structlog.get_logger(__name__).error("a job that must run alone cannot be started", reason=str(error))
        return EXIT_CONFIG
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run_one(settings, handlers, tools, parent))
    except Exception:
        logger.exception("the process of a job that runs alone failed")
        return 1


async def run_one(settings: Settings, handlers: HandlerFactory, tools: ToolRegistry, parent: int) -> int:
    """Claim one job, run it until it is settled, and close everything."""
    worker = OpenWorker(settings, handlers, tools, alone_lane(settings.queue))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.desk.begin_shutdown)
    watch_parent(
        parent,
        lambda: loop.call_soon_threadsafe(worker.desk.begin_shutdown),
        settings.shutdown_grace_s + SHUTDOWN_MARGIN_S,
    )
    try:
        claimed = None if worker.desk.closing else await worker.desk.claim_next()
        await _let_others_start(worker, settings)
        if claimed is None:
            return FOUND_NOTHING
        logger.info("a job runs alone", job_id=claimed.job_id, worker=worker.desk.worker_id)
        await worker.desk.run(claimed)
        return 0
    finally:
        await worker.close()


async def _let_others_start(worker: OpenWorker, settings: Settings) -> None:
    try:
        await worker.redis.delete(starting_key(settings.namespace, settings.queue))
    except (RedisError, OSError) as error:
        logger.debug("the next job that runs alone waits a little", error=type(error).__name__)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
