"""What a provider sees of a job: as many requests as there are attempts, and connections that outlive each job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.demo_server import DemoServer, demo_server
from tests.integration.workers.continuing import agents
from tests.integration.workers.mill import settled


@pytest.fixture
def demo() -> Iterator[DemoServer]:
    with demo_server() as server:
        yield server


async def test_a_provider_that_hangs_sees_one_request_for_each_of_two_attempts(
    redis_url: str, sqlite_url: str, namespace: str, demo: DemoServer
) -> None:
    """The client library's own retries would make them six, and its time limit ten minutes each."""
    async with agents(redis_url, sqlite_url, namespace, demo, attempt_timeout_s=3.0) as mill:
        job_id = await mill.accept("are you there? [first=60000]", model="demo")
        await settled(mill.looking())
        job = await mill.ended(job_id)
        assert (job["status"], job["error_code"], job["attempt"]) == ("dead", "timeout", 2)
    assert len(demo.requests(containing="are you there?")) == 2


async def test_twenty_jobs_in_a_row_are_answered_by_one_process(
    redis_url: str, sqlite_url: str, namespace: str, demo: DemoServer
) -> None:
    async with agents(redis_url, sqlite_url, namespace, demo) as mill:
        for number in range(20):
            job_id = await mill.answer(f"question {number}")
            job = await mill.job(job_id)
            assert (job["status"], job["attempt"]) == ("finished", 1), job["error_code"]
