"""A dramatiq worker with all of its threads, inside the test's process; only one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import dramatiq.worker
import pytest
from dramatiq import Worker

from schemas.settings import Settings
from workers import consumer
from workers.app import make_broker
from workers.broker import ChatBroker


@asynccontextmanager
async def in_process_worker(settings: Settings) -> AsyncIterator[ChatBroker]:
    """Serve the settings' queue as `run_worker` does, without its processes."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(dramatiq.worker, "QUEUE_PREFETCH", settings.threads)
        patch.setattr(dramatiq.worker, "CONSUMER_RESTART_DELAY_SECS", 0.05)
        patch.setattr(dramatiq.worker, "POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.05)
        patch.setattr(consumer, "WAIT_S", 0.05)
        broker = make_broker(settings.model_copy(update={"data_dir": Path(folder)}))
        worker = Worker(broker, worker_threads=settings.threads, worker_timeout=50)
        await asyncio.to_thread(worker.start)
        try:
            yield broker
        finally:
            await asyncio.to_thread(worker.stop, 20_000)
            broker.close()
