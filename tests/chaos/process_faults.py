"""What is done to workers, gateways and the model's server."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from os import kill

from tests.chaos.happenings import pid_of
from tests.chaos.part import Part, PartFailed
from tests.chaos.stage import Stage

#: What stays of an outage of a process that is started again at once.
BREATH_S = 0.3


def processes(worker: Part) -> frozenset[int]:
    """The processes of a worker, those that run a job alone included."""
    return frozenset(worker.pids())


def children(worker: Part) -> list[int]:
    """Its processes that serve the queue, as their logs say."""
    said = {pid_of(event["worker"]) for event in worker.events if event.get("event") == "worker ready"}
    return sorted(said & processes(worker))


async def kill_worker(stage: Stage, rng: random.Random) -> None:
    """kill -9 of a whole worker; another is started."""
    worker = rng.choice(stage.workers)
    happening = stage.begin("kill_worker", "worker", worker.name, victims=processes(worker))
    await worker.kill()
    await asyncio.sleep(BREATH_S)
    stage.start_worker(worker)
    stage.end(happening)


async def kill_worker_child(stage: Stage, rng: random.Random) -> None:
    """kill -9 of one process of a worker: the rest of it ends in order, and another is started."""
    worker = rng.choice(stage.workers)
    await worker.ready()
    victim = rng.choice(children(worker))
    told = processes(worker) - {victim}
    happening = stage.begin("kill_worker_child", "worker", worker.name, victims=frozenset({victim}), told=told)
    with suppress(ProcessLookupError):
        kill(victim, signal.SIGKILL)
    await worker.ended()
    stage.start_worker(worker)
    stage.end(happening)


async def freeze_worker(stage: Stage, rng: random.Random) -> None:
    """SIGSTOP of a whole worker past its leases, then it goes on."""
    worker = rng.choice(stage.workers)
    happening = stage.begin("freeze_worker", "worker", worker.name, victims=processes(worker))
    worker.freeze()
    await asyncio.sleep(stage.scale.freeze_s)
    worker.thaw()
    stage.end(happening)


async def restart_worker(stage: Stage, rng: random.Random) -> None:
    """SIGTERM, and the next version starts when it has ended."""
    worker = rng.choice(stage.workers)
    happening = stage.begin("restart_worker", "worker", worker.name, told=processes(worker))
    await _restart(worker, partial(stage.start_worker, worker))
    stage.end(happening)


async def roll_workers(stage: Stage, rng: random.Random) -> None:
    """A rolling deploy: one worker after the other ends in order, each when the one before it is ready again."""
    happening = stage.begin(
        "roll_workers", "worker", "all", told=frozenset[int]().union(*map(processes, stage.workers))
    )
    for worker in rng.sample(stage.workers, len(stage.workers)):
        await _restart(worker, partial(stage.start_worker, worker))
        await worker.ready()
    stage.end(happening)


async def kill_gateway(stage: Stage, rng: random.Random) -> None:
    """kill -9 of a gateway; another is started at its address."""
    gateway = rng.choice(stage.gateways)
    happening = stage.begin("kill_gateway", "gateway", gateway.name)
    await gateway.kill()
    await asyncio.sleep(BREATH_S)
    gateway.start()
    stage.end(happening)


async def restart_gateway(stage: Stage, rng: random.Random) -> None:
    """SIGTERM of a gateway, and the next version starts."""
    gateway = rng.choice(stage.gateways)
    happening = stage.begin("restart_gateway", "gateway", gateway.name)
    await _restart(gateway, gateway.start)
    stage.end(happening)


async def stop_model(stage: Stage, rng: random.Random) -> None:
    """The model's server is gone: connections are refused."""
    happening = stage.begin("stop_model", "model")
    await stage.model.kill()
    await asyncio.sleep(stage.scale.outage_s)
    await _start_model(stage)
    stage.end(happening)


async def hang_model(stage: Stage, rng: random.Random) -> None:
    """The model's server stands still: requests are taken and not answered."""
    happening = stage.begin("hang_model", "model")
    stage.model.freeze()
    await asyncio.sleep(stage.scale.outage_s)
    stage.model.thaw()
    stage.end(happening)


async def cut_model(stage: Stage, rng: random.Random) -> None:
    """The model's server breaks off every answer, and is there again at once."""
    happening = stage.begin("cut_model", "model")
    await stage.model.stop()
    await _start_model(stage)
    stage.end(happening)


async def _restart(part: Part, start: Callable[[], None]) -> None:
    """End it in order and start it again. Raises PartFailed if it served and did not end well."""
    served = part.serves
    code = await part.stop()
    start()
    if served and code != 0:
        raise PartFailed(f"{part.name} was told to end, and did with exit code {code}")


async def _start_model(stage: Stage) -> None:
    stage.model.start()
    await stage.model.ready()
