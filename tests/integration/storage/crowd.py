"""Many who accept, claim, settle and cancel at once, without knowing of each other.

Run as a program (`python -m tests.integration.storage.crowd URL SEED`) it is one process of such a crowd; it prints the
ids of the jobs it has accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from typing import Any

from sqlalchemy import select

from schemas.chat_job import ChatJob
from schemas.errors import Conflict, SessionBusy, TransitionRefused
from storage.breakers import BreakerRules, record_failure, release_held
from storage.clock import to_us
from storage.database import Database, open_database
from storage.jobs.accept import accept
from storage.jobs.cancel import request_cancel
from storage.jobs.claim import Claim, claim
from storage.jobs.lease import renew
from storage.jobs.reconcile import expired_jobs, lapsed_jobs
from storage.jobs.redrive import discard, redrive
from storage.jobs.settle import cancel, expire, fail, finish, lapse, rebuild, release
from storage.tables import dead_letters
from tests.integration.storage.acts import BROKEN, FRAMEWORK, HOPELESS, said

_LYING = select(dead_letters).where(dead_letters.c.resolution.is_(None))
TENANTS = ("a", "b")
QUEUES = ("chat", "bulk")
#: So short that leases run out while others still work on the job.
LEASE_US = to_us(0.05)


class Crowd:
    """Some tasks on one Database, each one doing this and that."""

    def __init__(self, database: Database, seed: int) -> None:
        self.database = database
        self.rng = random.Random(seed)
        #: job → tenant
        self.accepted: dict[str, str] = {}
        self.sessions: list[tuple[str, str]] = []
        self.held: list[Claim] = []
        self.refused = 0

    async def run(self, tasks: int, steps: int) -> None:
        """Raises whatever is not a refusal."""
        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(self._work(steps))

    async def _work(self, steps: int) -> None:
        acts = (
            [self.accept] * 3
            + [self.claim] * 4
            + [self.settle] * 4
            + [
                self.cancel,
                self.reconcile,
                self.renew,
                self.decide,
                self.hold,
            ]
        )
        for _ in range(steps):
            try:
                await self.rng.choice(acts)()
            except TransitionRefused:
                self.refused += 1

    async def accept(self) -> None:
        tenant, session_id = self.rng.choice(TENANTS), None
        if self.sessions and self.rng.random() < 0.7:
            tenant, session_id = self.rng.choice(self.sessions)
        deadline_s = self.rng.choice((0.1, 600, 600))
        about: dict[str, Any] = {"tenant": tenant, "queue": self.rng.choice(QUEUES), "deadline_s": deadline_s}
        about["if_busy"] = self.rng.choices(("enqueue", "reject", "interrupt"), (4, 1, 1))[0]
        job = ChatJob(message="hello", session_id=session_id, **about)
        try:
            accepted = await self.database.write(accept, job, FRAMEWORK)
        except SessionBusy:
            return
        self.accepted[accepted.job_id] = tenant
        if session_id is None:
            self.sessions.append((tenant, accepted.session_id))

    async def claim(self) -> None:
        claimed = await self.database.write(claim, self.rng.choice(QUEUES), "w", LEASE_US)
        if claimed is not None and self.rng.random() < 0.9:
            self.held.append(claimed)

    async def settle(self) -> None:
        if not self.held:
            return
        one = self.held.pop(self.rng.randrange(len(self.held)))
        job_id, epoch, write = one.job_id, one.epoch, self.database.write
        match self.rng.randrange(6):
            case 0:
                await write(fail, job_id, epoch, BROKEN, delay_us=to_us(self.rng.choice((0, 0.05))))
            case 1:
                await write(fail, job_id, epoch, HOPELESS, delay_us=0)
            case 2:
                await write(release, job_id, epoch)
            case 3:
                await write(cancel, job_id, epoch, "user", said("half"))
            case 4:
                rebuilt = await write(rebuild, job_id, epoch, "so far", [])
                await write(finish, job_id, rebuilt.epoch, said("so far"), None)
            case _:
                await write(finish, job_id, epoch, said("an answer"), None)

    async def cancel(self) -> None:
        if self.accepted:
            job_id, tenant = self.rng.choice(list(self.accepted.items()))
            await self.database.write(request_cancel, tenant, job_id, "user")

    async def reconcile(self) -> None:
        for look, act in ((expired_jobs, expire), (lapsed_jobs, lapse)):
            for stale in await self.database.read(look, 3):
                await self.database.write(act, stale.job_id, stale.epoch)

    async def decide(self) -> None:
        """Redrive or discard a dead letter that somebody else may be deciding about."""
        letters = await self.database.read(lambda connection: connection.execute(_LYING).all())
        if letters:
            letter = self.rng.choice(letters)
            with contextlib.suppress(Conflict):
                await self.database.write(self.rng.choice((redrive, redrive, discard)), letter.tenant, letter.id)

    async def hold(self) -> None:
        """A provider fails, and jobs are held and let go."""
        rules = BreakerRules(2, to_us(0.02), to_us(0.05))
        await self.database.write(record_failure, "provider", "nobody", BROKEN, rules)
        claimed = await self.database.write(claim, self.rng.choice(QUEUES), "w", LEASE_US, lambda *_: "provider")
        if claimed is not None:
            self.held.append(claimed)
        await self.database.write(release_held, 5)

    async def renew(self) -> None:
        await self.database.write(renew, [(one.job_id, one.attempt) for one in self.held], LEASE_US)


async def main(url: str, seed: int) -> None:
    database = open_database(url)
    crowd = Crowd(database, seed)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await crowd.run(tasks=3, steps=40)
    await database.close()
    print(" ".join(crowd.accepted), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
