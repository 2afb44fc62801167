"""The rest of the steps: how attempts end, by those who may end them and by those who no longer may."""

from __future__ import annotations

from typing import Any, ClassVar

from schemas.errors import Conflict, JobError, NotFound
from storage.clock import to_us
from storage.jobs import cancel, lease, reconcile, settle, views
from storage.lanes import alone_lane, is_alone
from storage.sessions import delete_session
from tests.integration.storage.acts import BROKEN, HOPELESS, LEASE_US
from tests.integration.storage.claim_walk import ClaimWalk
from tests.integration.storage.rules import UNFINISHED, Row, require
from tests.integration.storage.walk import NOTHING, WORKERS, Change

MAX_FAILURES = 2


def to_be_stopped(job: Row) -> bool:
    return job["cancel_reason"] is not None


class JobWalk(ClaimWalk):
    """All the steps, with how often each is taken."""

    steps: ClassVar[dict[str, int]] = {
        "accept_a_job": 17,
        "accept_again": 4,
        "answer_again": 5,
        "claim_a_job": 34,
        "finish": 8,
        "fail": 12,
        "release": 6,
        "stop": 5,
        "rebuild": 8,
        "look_up": 3,
        "wish_to_cancel": 10,
        "renew": 8,
        "expire": 9,
        "lapse": 5,
        "let_time_pass": 10,
        "meddle": 5,
        "spoil_a_hint": 3,
        "delete_a_session": 9,
    }

    async def finish(self) -> Change:
        held = self.any_held(to_be_stopped)
        if held is None:
            return NOTHING
        response = self.text()
        doing = self.database.write(settle.finish, held.claim.job_id, held.epoch, response, None)
        if not self.holds(held):
            return await self.expect_refusal("finish", doing)
        job = self.tables.jobs[held.claim.job_id]
        self.seen["finish beats cancel"] += job["cancel_reason"] is not None
        await doing
        return self.left(job, "finished", len(response))

    async def fail(self) -> Change:
        held = self.any_held(to_be_stopped)
        if held is None:
            return NOTHING
        error, charged = self.rng.choice((BROKEN, BROKEN, HOPELESS)), self.chance(0.7)
        delay_us, response = to_us(self.rng.choice((0, 2, 9, 30))), self.text()
        job_id = held.claim.job_id
        doing = self.database.write(
            settle.fail, job_id, held.epoch, error, delay_us=delay_us, charged=charged, response=response
        )
        if not self.holds(held):
            return await self.expect_refusal("fail", doing)
        recorded = await doing
        job = self.tables.jobs[job_id]
        if job["cancel_reason"] is not None:
            self.seen["failed when it was to be stopped"] += 1
            return self.left(job, "cancelled", len(response))
        late = recorded.kind != "cancel" and await self._at(recorded) + delay_us >= job["deadline_at"]
        return self._failed(job, error, charged=charged, late=late)

    async def _at(self, recorded: Any) -> int:
        tables = await self.read()
        return int(tables.transitions[recorded.job_id][-1]["at"])

    def _failed(self, job: Row, error: JobError, *, charged: bool, late: bool) -> Change:
        failures = job["failures"] + charged
        dead = not error.retryable or late or (charged and failures >= MAX_FAILURES)
        self.seen["dead at once" if not error.retryable else "dead" if dead else "to be retried"] += 1
        self.seen["dead for its deadline"] += late and error.retryable and failures < MAX_FAILURES
        self.seen["deferred"] += not charged and not dead
        return self.left(job, "dead" if dead else "queued", failures=failures)

    async def release(self) -> Change:
        held = self.any_held(lambda job: to_be_stopped(job) or job["releases"])
        if held is None:
            return NOTHING
        response = self.text()
        doing = self.database.write(settle.release, held.claim.job_id, held.epoch, response=response)
        if not self.holds(held):
            return await self.expect_refusal("release", doing)
        recorded = await doing
        job = self.tables.jobs[held.claim.job_id]
        if job["cancel_reason"] is not None:
            self.seen["released when it was to be stopped"] += 1
            return self.left(job, "cancelled", len(response))
        if job["releases"] >= settle.MAX_RELEASES:
            self.seen["released too often"] += 1
            return self._failed(job, BROKEN, charged=True, late=await self._at(recorded) >= job["deadline_at"])
        self.seen["released"] += 1
        return self.left(job, "queued", releases=job["releases"] + 1)

    async def stop(self) -> Change:
        """A worker ends an attempt that was to be stopped, with or without text."""
        held = self.any_held()
        if held is None:
            return NOTHING
        response = self.text() if self.chance(0.5) else []
        doing = self.database.write(settle.cancel, held.claim.job_id, held.epoch, "user", response)
        if not self.holds(held):
            return await self.expect_refusal("cancel", doing)
        await doing
        self.seen["stopped with text" if response else "stopped without text"] += 1
        return self.left(self.tables.jobs[held.claim.job_id], "cancelled", len(response))

    async def rebuild(self) -> Change:
        held = self.any_held()
        if held is None:
            return NOTHING
        doing = self.database.write(settle.rebuild, held.claim.job_id, held.epoch, "so far", [])
        if not self.holds(held):
            return await self.expect_refusal("rebuild", doing)
        recorded = await doing
        self.seen["rebuilt"] += 1
        if self.chance(0.7):
            held.epoch = recorded.epoch
        else:
            self.seen["rebuild whose reply was lost"] += 1
        job = self.tables.jobs[held.claim.job_id]
        return Change(jobs={job["id"]: {"epoch": job["epoch"] + 1, "lease_until": job["lease_until"]}})

    async def look_up(self) -> Change:
        """A writer whose reply was lost asks what became of it."""
        lost = [one for one in self.held if not self.holds(one)]
        running = [one for one in lost if self.is_running(one)]
        if not lost:
            return NOTHING
        held = self.rng.choice(running or lost)
        found = await self.database.read(views.find_transition, held.claim.job_id, held.epoch + 1)
        require((found is not None) == (held.claim.job_id in self.tables.jobs), "what moved the job is on record", held)
        if found is not None and found.kind == "rebuild":
            held.epoch = found.epoch
            self.seen["rebuild found again"] += 1
        return NOTHING

    async def meddle(self) -> Change:
        """Somebody who knows the epoch asks for what the job's status does not allow."""
        job = self.any_job()
        if job is None:
            return NOTHING
        job_id, epoch, write = job["id"], job["epoch"], self.database.write
        if job["status"] == "running":
            return await self.expect_refusal("untimely", write(settle.lapse, job_id, epoch))
        untimely = [
            lambda: write(settle.finish, job_id, epoch, self.text(), None),
            lambda: write(settle.fail, job_id, epoch, BROKEN, delay_us=0),
            lambda: write(settle.release, job_id, epoch),
            lambda: write(settle.rebuild, job_id, epoch, "", []),
            lambda: write(settle.expire, job_id, epoch),
        ]
        if job["status"] != "queued":
            untimely.append(lambda: write(settle.cancel, job_id, epoch, "user"))
            untimely.append(lambda: write(settle.lapse, job_id, epoch))
        return await self.expect_refusal("untimely", self.rng.choice(untimely)())

    async def wish_to_cancel(self) -> Change:
        held = self.any_held() if self.chance(0.5) else None
        job = self.tables.jobs.get(held.claim.job_id) if held else self.any_job(*self.rng.choice((UNFINISHED, ())))
        if job is None:
            return NOTHING
        tenant = job["tenant"] if self.chance(0.85) else "foreign"
        try:
            outcome = await self.database.write(cancel.request_cancel, tenant, job["id"], "user")
        except NotFound:
            require(tenant == "foreign", "an own job is found", job)
            self.seen["foreign job not found"] += 1
            return NOTHING
        self.seen[f"cancel of a {job['status']} job"] += 1
        if job["status"] == "queued":
            require(outcome.result == "cancelled", "a queued job is cancelled at once", outcome)
            self.seen["cancel behind a head"] += not job["head"]
            return self.left(job, "cancelled")
        if job["status"] == "running":
            require(outcome.result == "stopping", "a running job is flagged", outcome)
            return Change(jobs={job["id"]: {"cancel_reason": "user"}})
        require(outcome.result == "ended", "an ended job stays", outcome)
        return NOTHING

    async def renew(self) -> Change:
        flagged = self.any_held(to_be_stopped)
        worker = flagged.worker if flagged is not None else self.rng.choice(WORKERS)
        mine = [one for one in self.held if one.worker == worker]
        held = [(one.claim.job_id, one.claim.attempt) for one in mine]
        renewal = await self.database.write(lease.renew, held, LEASE_US)
        change, lost, stopped = Change(), set(), set()
        for key in held:
            job = self.tables.jobs.get(key[0])
            if job is None or (job["status"], job["attempt"]) != ("running", key[1]):
                lost.add(key)
                continue
            change.jobs[key[0]] = {"epoch": job["epoch"]}
            if job["cancel_reason"] is not None:
                stopped.add(key)
        require(renewal.lost == lost, "a renewal tells what is lost", renewal, lost)
        require(set(renewal.cancelled) == stopped, "a renewal tells what is to be stopped", renewal, stopped)
        self.seen["renewed"] += bool(change.jobs)
        self.seen["found lost"] += bool(lost)
        self.seen["told to stop"] += bool(stopped)
        return change

    async def expire(self) -> Change:
        stale = await self.database.read(reconcile.expired_jobs, 100)
        if not stale or self.chance(0.15):
            job = self.any_job("running")
            if job is None or job["lease_until"] <= self.tables.now + to_us(1):
                return NOTHING
            return await self.expect_refusal("expire", self.database.write(settle.expire, job["id"], job["epoch"]))
        one = max(stale, key=lambda one: (self.tables.jobs[one.job_id]["failures"], self.rng.random()))
        job = self.tables.jobs[one.job_id]
        recorded = await self.database.write(settle.expire, one.job_id, one.epoch)
        if job["cancel_reason"] is not None:
            self.seen["expired when it was to be stopped"] += 1
            return self.left(job, "cancelled")
        self.seen["expired"] += 1
        self.seen["expired for good"] += job["failures"] == 1
        late = await self._at(recorded) >= job["deadline_at"]
        lost = job["lost_in_company"] + (not is_alone(job["lane"]) and self._had_company(job))
        if lost == MAX_FAILURES and job["failures"] == 1 and not late:
            self.seen["isolated"] += 1
            return self.left(job, "queued", failures=2, lost_in_company=2, lane=alone_lane(job["queue"]))
        self.seen["lost alone"] += is_alone(job["lane"])
        change = self._failed(job, BROKEN, charged=True, late=late)
        change.jobs[job["id"]]["lost_in_company"] = lost
        return change

    def _had_company(self, job: Row) -> bool:
        """Whether another job ran, or was lost, under the worker's id."""
        running = [one for one in self.tables.jobs.values() if one["worker"] == job["worker"] and one is not job]
        lost = [
            attempt
            for made in self.tables.attempts.values()
            for attempt in made
            if (attempt["worker"], attempt["ending"]) == (job["worker"], "expire") and attempt["job_id"] != job["id"]
        ]
        return bool(running or lost)

    async def lapse(self) -> Change:
        stale = await self.database.read(reconcile.lapsed_jobs, 100)
        if not stale or self.chance(0.15):
            job = self.any_job("running", "queued")
            if job is None or (job["status"] == "queued" and job["deadline_at"] <= self.tables.now + to_us(1)):
                return NOTHING
            return await self.expect_refusal("lapse", self.database.write(settle.lapse, job["id"], job["epoch"]))
        one = self.rng.choice(stale)
        job = self.tables.jobs[one.job_id]
        await self.database.write(settle.lapse, one.job_id, one.epoch)
        self.seen["lapse of a head" if job["head"] else "lapse behind a head"] += 1
        return self.left(job, "dead")

    async def delete_a_session(self) -> Change:
        busy_ones = {job["session_id"] for job in self.tables.jobs.values() if job["status"] in UNFINISHED}
        idle_ones = self.tables.sessions.keys() - busy_ones
        chosen = sorted(idle_ones if idle_ones and self.chance(0.8) else self.tables.sessions)
        if not chosen:
            return NOTHING
        session = self.tables.sessions[self.rng.choice(chosen)]
        jobs = [job for job in self.tables.jobs.values() if job["session_id"] == session["id"]]
        busy = session["id"] in busy_ones
        try:
            gone = await self.database.write(delete_session, session["tenant"], session["id"])
        except Conflict:
            require(busy, "an idle session can be deleted", session)
            self.seen["busy session kept"] += 1
            return NOTHING
        require(not busy and set(gone) == {job["id"] for job in jobs}, "a session takes its jobs with it", session)
        self.seen["session deleted"] += 1
        return Change(gone_sessions={session["id"]})
