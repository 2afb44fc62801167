"""The steps of those who look after the mill: dead letters, paused queues, breakers and retention."""

from __future__ import annotations

from typing import ClassVar

from schemas.errors import Conflict
from storage import breakers, queues, retention
from storage.breakers import BreakerRules
from storage.clock import to_us
from storage.jobs import claim, redrive
from tests.integration.storage.acts import BROKEN, LEASE_US
from tests.integration.storage.job_walk import JobWalk
from tests.integration.storage.rules import UNFINISHED, Row, require
from tests.integration.storage.walk import ANYTHING, LANES, NOTHING, QUEUES, SHIFTED, Change

BREAKER = "provider/shaky"
RULES = BreakerRules(threshold=2, pause_us=to_us(4), longest_pause_us=to_us(10))
PROBE_US = to_us(6)


class AfterWalk(JobWalk):
    """All the steps there are."""

    steps: ClassVar[dict[str, int]] = {
        **JobWalk.steps,
        "redrive_a_letter": 6,
        "discard_a_letter": 2,
        "decide_again": 2,
        "pause_or_resume": 3,
        "claim_under_a_breaker": 14,
        "tell_the_breaker": 8,
        "release_who_is_held": 4,
        "retain": 4,
    }

    def a_letter(self, *, lying: bool = True) -> Row | None:
        found = [one for letters in self.tables.dead_letters.values() for one in letters]
        chosen = [one for one in found if (one["resolution"] is None) == lying]
        return self.rng.choice(chosen) if chosen else None

    async def redrive_a_letter(self) -> Change:
        letter = self.a_letter()
        if letter is None:
            return NOTHING
        job = self.tables.jobs[letter["job_id"]]
        session = self.tables.sessions[job["session_id"]]
        busy = any(
            one["session_id"] == session["id"] and one["status"] in UNFINISHED for one in self.tables.jobs.values()
        )
        await self.database.write(redrive.redrive, letter["tenant"], letter["id"])
        self.seen["redriven"] += 1
        self.seen["redriven behind another"] += busy
        self.seen["redriven out of isolation"] += job["lane"] != job["queue"]
        return Change(
            unplaced=self._asked_anew(job),
            jobs={
                job["id"]: {
                    "status": "queued",
                    "epoch": job["epoch"] + 1,
                    "head": not busy,
                    "failures": 0,
                    "releases": 0,
                    "lost_in_company": 0,
                    "lane": job["queue"],
                    "session_seq": session["next_seq"],
                    "cancel_reason": None,
                    "deadline_at": ANYTHING,
                }
            },
        )

    def _asked_anew(self, job: Row) -> set[str]:
        """The job's message, if nothing hangs on it or is about to."""
        message_id = job["user_message_id"]
        children = [one for one in self.tables.messages.values() if one["parent_id"] == message_id]
        leaf = self.tables.sessions[job["session_id"]]["active_leaf"] == message_id
        others = [
            one
            for one in self.tables.jobs.values()
            if one["user_message_id"] == message_id and one is not job and one["status"] in UNFINISHED
        ]
        self.seen["redriven beside another answer"] += bool(others)
        return set() if job["regenerates"] or children or leaf or others else {message_id}

    async def discard_a_letter(self) -> Change:
        letter = self.a_letter()
        if letter is None:
            return NOTHING
        job = self.tables.jobs[letter["job_id"]]
        await self.database.write(redrive.discard, letter["tenant"], letter["id"])
        self.seen["discarded"] += 1
        return Change(jobs={job["id"]: {"status": "dead", "epoch": job["epoch"] + 1}})

    async def decide_again(self) -> Change:
        letter = self.a_letter(lying=False)
        if letter is None:
            return NOTHING
        act = self.rng.choice((redrive.redrive, redrive.discard))
        try:
            await self.database.write(act, letter["tenant"], letter["id"])
        except Conflict:
            self.seen["decided already"] += 1
            return NOTHING
        require(False, "a letter is decided about once", letter)
        return NOTHING

    async def pause_or_resume(self) -> Change:
        queue = self.rng.choice(QUEUES)
        if queue in self.paused:
            require(await self.database.write(queues.resume, queue), "a paused queue is resumed", queue)
            self.paused.discard(queue)
        elif self.chance(0.4):
            await self.database.write(queues.pause, queue, "walk")
            self.paused.add(queue)
            self.seen["paused"] += 1
        return NOTHING

    async def claim_under_a_breaker(self) -> Change:
        """A claim of a worker that believes the breaker of a model to be open."""
        lane = self.rng.choices(LANES, (6, 2, 1, 1))[0]
        before = await self.database.read(breakers.list_breakers)

        def breaker_of(framework: str, model: str | None) -> str | None:
            return BREAKER if model == "shaky" else None

        claimed = await self.database.write(claim.claim, lane, "careful", LEASE_US, breaker_of, PROBE_US)
        after = await self.read()
        change = Change()
        for job in self.tables.jobs.values():
            if after.jobs[job["id"]]["held_by"] != job["held_by"] and (claimed is None or claimed.job_id != job["id"]):
                require(job["model"] == "shaky" and job["status"] == "queued", "only its own wait for a breaker", job)
                require(any(one["opened_at"] for one in before), "only an open breaker holds", before)
                change.jobs[job["id"]] = {"epoch": job["epoch"], "failures": job["failures"]}
                self.seen["held by a breaker"] += 1
            elif after.jobs[job["id"]]["due_at"] != job["due_at"]:
                change.jobs[job["id"]] = {"epoch": job["epoch"], "failures": job["failures"]}
        if claimed is None:
            return change
        job = self.tables.jobs[claimed.job_id]
        is_open = any(one["opened_at"] for one in before)
        self.seen["probed"] += is_open and job["model"] == "shaky"
        if is_open and job["model"] == "shaky":
            (breaker,) = await self.database.read(breakers.list_breakers)
            require(breaker["probe_job"] == job["id"], "only the probe runs while a breaker is open", breaker, job)
        change.jobs[job["id"]] = {
            "status": "running",
            "epoch": job["epoch"] + 1,
            "attempt": job["attempt"] + 1,
            "worker": "careful",
        }
        question = self.tables.messages[job["user_message_id"]]
        if not question["placed"]:
            change.placed.add(question["id"])
        return change

    async def tell_the_breaker(self) -> Change:
        found = await self.database.read(breakers.list_breakers)
        probe = found[0]["probe_job"] if found else None
        job_id = probe if probe is not None and self.chance(0.7) else "nobody"
        if found and self.chance(0.15):
            await self.database.write(breakers.record_success, BREAKER)
            self.seen["breaker closed"] += found[0]["opened_at"] is not None
        elif probe is not None and self.chance(0.2):
            await self.database.write(breakers.end_probe, BREAKER, job_id)
        else:
            is_open = await self.database.write(breakers.record_failure, BREAKER, job_id, BROKEN, RULES)
            failures = found[0]["failures"] + 1 if found else 1
            require(is_open == (failures >= RULES.threshold), "so many failures in a row open a breaker", found)
            self.seen["breaker opened"] += is_open
            self.seen["probe failed"] += job_id == probe
        return NOTHING

    async def release_who_is_held(self) -> Change:
        held = [one for one in self.tables.jobs.values() if one["held_by"] is not None]
        if held and self.chance(0.5):
            # The provider is well again.
            await self.database.write(breakers.record_success, BREAKER)
        found = await self.database.read(breakers.list_breakers)
        await self.database.write(breakers.release_held, 100)
        closed = not any(one["opened_at"] for one in found)
        after = await self.read()
        change = Change()
        for job in held:
            now = after.jobs[job["id"]]
            if now["held_by"] is None:
                require(now["due_at"] <= after.now, "who is let go is due", now)
                self.seen["let go by a breaker"] += 1
            else:
                require(not closed or now["due_at"] <= after.now, "a closed breaker holds nobody", now)
            change.jobs[job["id"]] = {"epoch": job["epoch"], "failures": job["failures"]}
        return change

    async def retain(self) -> Change:
        """What has ended may go at any time, and nothing else does."""
        old = await self.database.read(retention.old_jobs, 0, 8)
        removed = await self.database.write(retention.remove_jobs, old)
        after = await self.read()
        gone = self.tables.jobs.keys() - after.jobs.keys()
        require(gone == set(old) and removed == len(gone), "what is old goes", old, gone)
        for job_id in gone:
            job = self.tables.jobs[job_id]
            letters = self.tables.dead_letters[job_id]
            require(job["status"] not in UNFINISHED, "what is unfinished stays", job)
            require(all(one["resolution"] for one in letters), "an undecided letter stays", letters)
        self.seen["retained"] += removed
        return SHIFTED if gone else NOTHING
