"""Real workers that are killed in the middle of an answer, or stand still, and the worker that goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from schemas.progress import IN_DOUBT
from storage.tables import tool_calls
from tests.demo_server import DemoServer, demo_server
from tests.integration.workers.continuing import Scene, agents, at_the_gate
from tests.integration.workers.mill import Mill, eventually
from tests.integration.workers.scripted import script
from tests.integration.workers.writing_tools import SETTINGS
from tests.worker_process import WorkerProcess

#: Short enough for a test to see it pass, long enough for a busy machine to renew it.
SHORT_LEASE: dict[str, Any] = {"lease_s": 3, "lease_renew_s": 0.3, "reconcile_s": 0.2}
Start = Callable[[], Any]


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoServer]:
    with demo_server() as server:
        yield server


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest_asyncio.fixture
async def mill(redis_url: str, sqlite_url: str, namespace: str, demo: DemoServer) -> AsyncIterator[Mill]:
    """Looks on from beside the workers."""
    async with agents(redis_url, sqlite_url, namespace, demo, **SHORT_LEASE) as mill:
        yield mill


@pytest_asyncio.fixture
async def start(mill: Mill, demo: DemoServer, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts workers; they are ended with the test."""
    async with AsyncExitStack() as stack:
        count = 0

        async def start() -> WorkerProcess:
            nonlocal count
            count += 1
            folder = tmp_path / f"worker{count}"
            variables = {"CHATMILL_DEMO_URL": demo.base_url, "CHATMILL_MODEL": "demo-strict"}
            worker = WorkerProcess(folder, mill.settings, **variables)
            with (folder / "chatmill.toml").open("a") as file:
                file.write(SETTINGS)
            await stack.enter_async_context(worker)
            await worker.ready()
            return worker

        yield start


async def killed(mill: Mill, start: Start, scene: Scene, message: str, tool: str, *effects: str, **fields: Any) -> str:
    """A job whose worker is killed while `tool` waits, once another worker has ended it."""
    victim = await start()
    job_id = await mill.accept(message, **fields)
    await at_the_gate(mill, job_id, scene, tool, *effects)
    victim.kill()
    scene.gate.touch()
    await start()
    await mill.ended(job_id)
    return job_id


async def check_text(mill: Mill, job_id: str) -> str:
    fold = await mill.fold(job_id)
    shown = ""
    for _, event in await mill.events(job_id):
        shown = {"started": "", "snapshot": event.get("text", "")}.get(event["kind"], shown)
        shown += event["text"] if event["kind"] == "text" else ""
    assert shown == fold.text
    return shown


async def test_a_worker_killed_in_a_write_does_not_write_again(
    mill: Mill, start: Start, scene: Scene, demo: DemoServer
) -> None:
    message = f"[say:One. ]{scene.note('a', waits=True)}[then][say:Done.]"
    job_id = await killed(mill, start, scene, message, "note", "a")
    assert await mill.transitions(job_id) == ["accept", "claim", "expire", "claim", "finish"]
    assert scene.effects(job_id) == ["a"]
    *_, asked = scene.sent(demo)
    assert asked[-1]["content"] == IN_DOUBT
    assert await check_text(mill, job_id) == "Done."


async def test_a_worker_killed_between_a_write_and_the_end_of_its_round_does_not_write_again(
    mill: Mill, start: Start, scene: Scene, demo: DemoServer
) -> None:
    message = f"[say:One. ]{scene.note('a')}{scene.wait()}[then][say:Done.]"
    job_id = await killed(mill, start, scene, message, "wait", "a")
    assert scene.effects(job_id) == ["a"]
    *_, asked = scene.sent(demo)
    assert [one["content"] for one in asked[3:]] == ["a is noted"]
    assert await check_text(mill, job_id) == "Done."


async def test_a_worker_killed_after_a_round_is_gone_on_from_there(
    mill: Mill, start: Start, scene: Scene, demo: DemoServer
) -> None:
    message = f"[say:One. ]{scene.note('a')}[then][say:Two. ]{scene.wait()}[then][say:Done.]"
    job_id = await killed(mill, start, scene, message, "wait", "a")
    assert scene.effects(job_id) == ["a"]
    assert "snapshot" in await mill.kinds(job_id)
    assert await check_text(mill, job_id) == "One. Two. Done."
    # One request for each round, and one more for the round in which the first worker died.
    assert [len(messages) for messages in scene.sent(demo)] == [2, 4, 4, 6]


async def test_a_worker_killed_in_a_write_with_a_key_makes_it_again_under_that_key(
    mill: Mill, start: Start, scene: Scene
) -> None:
    message = f"{scene.note('a', waits=True, tool='note_by_key')}[then][say:Done.]"
    job_id = await killed(mill, start, scene, message, "note_by_key", "a")
    first, second = scene.keys(job_id)
    assert first == second is not None


async def test_a_worker_killed_under_a_handler_that_cannot_continue_leaves_a_dead_letter(
    mill: Mill, start: Start, scene: Scene
) -> None:
    victim = await start()
    args = {"file": str(scene.effects_file), "text": "a", "until": str(scene.gate)}
    job_id = await mill.accept(script("begin", ("call", ["note", args])), agent_framework="scripted")

    async def noted() -> bool:
        return scene.effects(job_id) == ["a"]

    await eventually(noted)
    victim.kill()
    await start()
    assert (await mill.ended(job_id))["status"] == "dead"
    (letter,) = await mill.dead_letters(job_id)
    assert letter["error"]["code"] == "worker_lost"
    assert "its tools have written and its agent cannot continue" in letter["error"]["message"]
    assert scene.effects(job_id) == ["a"]


async def test_a_worker_that_wakes_after_its_lease_starts_no_write(
    mill: Mill, start: Start, scene: Scene, demo: DemoServer
) -> None:
    zombie = await start()
    job_id = await mill.accept(f"[first=1000]{scene.note('a')}[then][say:Done.]")
    await demo.awaited(1, containing=str(scene.gate.parent), state="open")
    zombie.pause()
    await start()
    assert (await mill.ended(job_id))["status"] == "finished"
    zombie.resume()
    await zombie.logged("the job was taken over")
    assert scene.effects(job_id) == ["a"]
    assert [row["attempt"] for row in await mill.rows(tool_calls, job_id=job_id)] == [2]
    assert await mill.transitions(job_id) == ["accept", "claim", "expire", "claim", "finish"]
