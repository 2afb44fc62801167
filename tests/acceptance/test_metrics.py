"""What several processes count is added up, wherever it is asked for, and stays when one of them dies."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import httpx2
import pytest
from pydantic import SecretStr

from cli.ports import free_port
from schemas.chat_job import ChatJob
from schemas.settings import Settings
from storage.database import open_database
from storage.event_log import EventLog
from storage.migrate import migrate
from storage.redis_client import open_redis
from tests.acceptance.running_up import Up, until
from tests.worker_process import WorkerProcess
from workers.producer import Producer

FINISHED = r'chatmill_jobs_ended_total\{code="",outcome="ok",queue="chat"\} (\d+)'


def finished(url: str) -> int:
    """How many jobs have finished, by the metrics at `url`; -1 while nobody serves them."""
    try:
        found = re.search(FINISHED, httpx2.get(f"{url}/metrics", timeout=10).text)
    except httpx2.HTTPError:
        return -1
    return int(found[1]) if found else 0


def ask(url: str, jobs: int) -> None:
    for number in range(jobs):
        job = {"message": f"hello {number}", "agent_framework": "echo"}
        assert httpx2.post(f"{url}/v1/jobs", json=job, timeout=30).status_code == 202


async def test_the_gateway_shows_what_all_workers_have_counted_even_the_dead(tmp_path: Path) -> None:
    async with Up(tmp_path / "data", CHATMILL_PROCESSES="2") as up:
        ask(up.url, 6)
        await until(lambda: finished(up.url) == 6, what=lambda: httpx2.get(f"{up.url}/metrics").text)
        workers = sorted((tmp_path / "data" / "workers").glob("*.json"))
        assert len(workers) == 2
        os.kill(int(workers[0].stem), signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{workers[0].stem}").exists(), 60)
        assert finished(up.url) == 6
        ask(up.url, 2)
        await until(lambda: finished(up.url) == 8, 60, lambda: httpx2.get(f"{up.url}/metrics").text)


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_worker_of_its_own_serves_what_its_processes_have_counted(
    tmp_path: Path, redis_url: str, namespace: str, processes: int
) -> None:
    settings = Settings(
        redis_url=SecretStr(redis_url),
        database_url=SecretStr(f"sqlite:///{tmp_path / 'chatmill.db'}"),
        namespace=namespace,
        agent_framework="echo",
        processes=processes,
    )
    database, redis = open_database(settings.sqlalchemy_url), open_redis(redis_url)
    await migrate(database)
    producer = Producer(settings, database, EventLog(redis, namespace, ttl_live_s=60, ttl_ended_s=60))
    url = f"http://127.0.0.1:{(port := free_port())}"
    worker = WorkerProcess(tmp_path / "worker", settings, CHATMILL_METRICS_PORT=str(port))
    async with worker:
        await worker.ready()
        for number in range(5):
            await producer.accept(ChatJob(message=f"hello {number}"))
        await until(lambda: finished(url) == 5, 30, worker.log)
        assert httpx2.get(f"{url}/other").status_code == 404
        assert await worker.stop() == 0
        await until(lambda: finished(url) == -1)
    await redis.aclose()
    await database.close()
