"""Whoever holds up the event loop of a worker is named in its log, and costs the neighbours nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.demo_server import demo_process
from tests.integration.workers.mill import Mill, file_appears
from tests.integration.workers.scripted import script
from tests.worker_process import WorkerProcess
from workers import loop_watch

#: Shorter than the blockage: without renewals the neighbours would be lost.
SHORT_LEASE: dict[str, Any] = {"lease_s": 2, "lease_renew_s": 0.3, "reconcile_s": 0.2}
BLOCKED, MOVES = "the event loop is blocked", "the event loop moves again"

SLOW_TOOL = """
import time

from schemas.tool import Tool


async def find(query: str) -> str:
    asleep = 2.5
    time.sleep(asleep)
    return "found"


search_slowly = Tool(
    name="search_slowly",
    description="Searches.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    function=find,
    effect="read",
)
"""


@pytest_asyncio.fixture
async def mill(redis_url: str, sqlite_url: str, namespace: str) -> AsyncIterator[Mill]:
    """Looks on from beside the workers."""
    async with Mill(redis_url, sqlite_url, namespace, threads=4, **SHORT_LEASE) as mill:
        yield mill


async def test_a_handler_that_blocks_is_named_and_its_neighbours_finish_at_their_first_attempt(
    mill: Mill, tmp_path: Path
) -> None:
    async with WorkerProcess(tmp_path / "one", mill.settings) as worker:
        await worker.ready()
        begun, go = tmp_path / "begun", tmp_path / "go"
        neighbour = await mill.accept(script("a", ("touch", str(begun)), ("until", str(go)), "b"))
        await file_appears(begun)
        blocking = tmp_path / "blocking"
        blocker = await mill.accept(script(("touch", str(blocking)), ("block", 5.0), "blocked"))
        await file_appears(blocking)
        leases = []
        for _ in range(8):
            leases.append((await mill.job(neighbour))["lease_until"])
            await asyncio.sleep(0.5)
        assert leases == sorted(leases)
        assert leases[-1] - leases[0] > 2_000_000, "renewed while the loop stood still"
        assert leases[-1] > await mill.now_us()
        go.touch()
        session_id = (await mill.job(blocker))["session_id"]
        for job_id in (neighbour, blocker):
            await mill.ended(job_id)
            assert await mill.transitions(job_id) == ["accept", "claim", "finish"]
        (said,) = await worker.logged(BLOCKED)
        (again,) = await worker.logged(MOVES)
    for line in (said, again):
        assert (line["level"], line["job_id"], line["session_id"]) == ("error", blocker, session_id)
        assert line["framework"] == "scripted"
        file, function, number = line["place"].rsplit(":", 2)
        assert (Path(file).name, function) == ("scripted.py", "_act")
        assert "time.sleep(argument)" in Path(file).read_text().splitlines()[int(number) - 1]  # noqa: ASYNC240
    assert 1.0 <= said["seconds"] < 4.0
    assert 4.0 <= again["seconds"] < 8.0


async def test_a_tool_that_blocks_inside_the_graph_is_named_with_its_job(
    redis_url: str, sqlite_url: str, namespace: str, tmp_path: Path
) -> None:
    tools = {"search_slowly": "slow_tools:search_slowly"}
    folder = tmp_path / "one"
    async with (
        demo_process() as demo,
        Mill(redis_url, sqlite_url, namespace, threads=4, tools=tools, demo_url=demo.base_url) as mill,
    ):
        worker = WorkerProcess(folder, mill.settings, CHATMILL_DEMO_URL=demo.base_url)
        write_files(folder)
        async with worker:
            await worker.ready()
            fields = {"agent_framework": "langgraph", "model": "demo"}
            await asyncio.gather(*(mill.accept("Hello", **fields) for _ in range(3)))
            blocker = await mill.accept("Search for A-17", tools=["search_slowly"], **fields)
            assert (await mill.ended(blocker))["status"] == "finished"
            (said,) = await worker.logged(BLOCKED)
    assert (said["job_id"], said["framework"]) == (blocker, "langgraph")
    line = SLOW_TOOL.splitlines().index("    time.sleep(asleep)") + 1
    assert said["place"] == f"{folder}/slow_tools.py:find:{line}"


def write_files(folder: Path) -> None:
    """The tool and the settings that name it, beside what a WorkerProcess has written."""
    (folder / "slow_tools.py").write_text(SLOW_TOOL)
    with (folder / "chatmill.toml").open("a") as file:
        file.write('\n[tools]\nsearch_slowly = "slow_tools:search_slowly"\n')


async def test_a_process_that_was_frozen_blames_nobody(mill: Mill, tmp_path: Path) -> None:
    async with WorkerProcess(tmp_path / "one", mill.settings) as worker:
        await worker.ready()
        worker.pause()
        await asyncio.sleep(3)
        worker.resume()
        (said,) = await worker.logged("the whole process stood still")
        assert (await mill.ended(await mill.accept(script("a"))))["status"] == "finished"
        assert said["seconds"] >= 2
        assert [line for line in worker.lines() if line["event"] == BLOCKED] == []


async def test_a_long_blockage_is_told_again_and_a_callback_has_a_place_but_no_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[tuple[str, dict[str, Any]]] = []

    class Logger:
        def error(self, event: str, **about: Any) -> None:
            said.append((event, about))

    monkeypatch.setattr(loop_watch, "logger", Logger())
    monkeypatch.setattr(loop_watch, "BLOCKED_S", 0.2)
    monkeypatch.setattr(loop_watch, "REPEAT_S", 0.5)
    watch = loop_watch.LoopWatch()
    watch.start()
    blocked = asyncio.get_running_loop().create_future()

    def block() -> None:
        time.sleep(2)
        blocked.set_result(None)

    asyncio.get_running_loop().call_soon(block)
    await blocked
    async with asyncio.timeout(5):
        while said[-1][0] != MOVES:  # noqa: ASYNC110 - a thread says it
            await asyncio.sleep(0.01)
    factory = asyncio.get_running_loop().get_task_factory()
    await watch.close()
    assert asyncio.get_running_loop().get_task_factory() is not factory
    events = [event for event, _ in said]
    assert events[:-1] == [BLOCKED] * (len(said) - 1)
    assert 3 <= len(said) <= 5
    assert all(":block:" in about["place"] and "job_id" not in about for _, about in said)
    assert 1.5 <= said[-1][1]["seconds"] <= 3
