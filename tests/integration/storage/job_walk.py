"""The steps of the random walk: every transition, by those who may make it and by those who no longer may."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import update

from schemas.chat_job import ChatJob
from schemas.errors import Conflict, InvalidRequest, JobError, NotFound
from storage.clock import to_us
from storage.jobs import accept, cancel, claim, lease, reconcile, settle, views
from storage.sessions import delete_session
from storage.tables import lanes
from tests.integration.storage.acts import BROKEN, FRAMEWORK, HOPELESS, LEASE_US
from tests.integration.storage.rules import UNFINISHED, Row, require
from tests.integration.storage.walk import NOTHING, QUEUES, TENANTS, WORKERS, Change, Held, Walk

MAX_FAILURES = 2


def to_be_stopped(job: Row) -> bool:
    return job["cancel_reason"] is not None


class JobWalk(Walk):
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

    async def accept_a_job(self) -> Change:
        (tenant,) = self.rng.choices(TENANTS, (6, 3, 2))
        about: dict[str, Any] = {
            "tenant": tenant,
            "queue": self.rng.choices(QUEUES, (3, 1))[0],
            "priority": self.rng.choice((-1, 0, 0, 1)),
            "deadline_s": self.rng.choice((8, 20, 600, 600, 600)),
        }
        sessions = [one["id"] for one in self.tables.sessions.values() if one["tenant"] == tenant and not one["hidden"]]
        if sessions and self.chance(0.5):
            about["session_id"] = self.rng.choice(sessions)
        job = ChatJob(message=f"question {self.rng.random()}", **about)
        return await self._accept(job)

    async def answer_again(self) -> Change:
        questions = [
            one
            for one in self.tables.messages.values()
            if one["role"] == "user" and one["session_id"] in self.tables.sessions
        ]
        if not questions:
            return NOTHING
        # Those that never got a place are rare, and the reason for this step.
        unplaced = [one for one in questions if not one["placed"]]
        question = self.rng.choice(unplaced if unplaced and self.chance(0.5) else questions)
        job = ChatJob(tenant=question["tenant"], reply_to=question["id"], session_id=question["session_id"])
        return await self._accept(job, new_messages=0)

    async def _accept(self, job: ChatJob, new_messages: int = 1) -> Change:
        accepted = await self.database.write(accept.accept, job, FRAMEWORK)
        require(accepted.created, "a new job is made", accepted)
        self.known.append(job)
        if job.tenant == "narrow":
            narrow = update(lanes).where(lanes.c.tenant == "narrow").values(running_limit=1)
            await self.database.write(lambda connection: connection.execute(narrow))
        self.seen["accepted behind another"] += accepted.recorded is not None and accepted.recorded.wakes is None
        return Change(new_jobs=1, new_messages=new_messages)

    async def accept_again(self) -> Change:
        known = [job for job in self.known if job.job_id in self.tables.jobs]
        if not known:
            return NOTHING
        job = self.rng.choice(known)
        if self.chance(0.4):
            accepted = await self.database.write(accept.accept, job, FRAMEWORK)
            require(not accepted.created and accepted.recorded is None, "the same request finds its job", accepted)
            self.seen["accepted again"] += 1
            return NOTHING
        other = job.model_copy(update=self.rng.choice(({"metadata": {"other": 1}}, {"tenant": "foreign"})))
        try:
            await self.database.write(accept.accept, other, FRAMEWORK)
        except (InvalidRequest, NotFound):
            self.seen["id refused"] += 1
        else:
            require(False, "an id is one request of one tenant", other)
        return NOTHING

    async def claim_a_job(self) -> Change:
        queue, worker = self.rng.choices(QUEUES, (3, 1))[0], self.rng.choice(WORKERS)
        claimed = await self.database.write(claim.claim, queue, worker, LEASE_US)
        open_lanes = self._open_lanes(queue)
        self.seen["lane full"] += any(lane["running"] >= lane["running_limit"] for lane in self.tables.lanes.values())
        if claimed is None:
            require(not open_lanes, "what is runnable is found", open_lanes)
            self.seen["claim found nothing"] += 1
            return NOTHING
        job = self.tables.jobs[claimed.job_id]
        runnable = self._runnable(queue, claimed.tenant, claimed.claimed_at)
        require(job in runnable, "only a due, queued head runs", job)
        best = min(runnable, key=lambda one: (one["rank"], one["due_at"], one["id"]))
        require(job == best, "the best of its lane runs", job, best)
        lane = self.tables.lanes[queue, claimed.tenant]
        for other in open_lanes:
            turns = [(one["running"], one["last_served"]) for one in (lane, other)]
            require(turns[0] <= turns[1], "the lane with fewest running is served", lane, other)
        self.seen["claim after a wrong hint"] += any(
            one["lane"] == queue
            and one["next_due"] is not None
            and one["next_due"] <= self.tables.now
            and (one["running"], one["last_served"]) < (lane["running"], lane["last_served"])
            and one["running"] < one["running_limit"]
            for one in self.tables.lanes.values()
        )
        self.seen["retry claimed"] += job["failures"] > 0
        if self.chance(0.12):
            self.seen["claim whose reply was lost"] += 1
        else:
            self.remember(Held(claimed, worker, claimed.epoch))
        started = {"status": "running", "epoch": job["epoch"] + 1, "attempt": job["attempt"] + 1, "worker": worker}
        change = Change(jobs={job["id"]: started})
        question = self.tables.messages[job["user_message_id"]]
        if not question["placed"]:
            change.placed.add(question["id"])
            self.seen["unplaced message answered again"] += job["regenerates"]
        leaf = self.tables.sessions[job["session_id"]]["active_leaf"]
        parent = question["parent_id"] if question["placed"] else leaf
        require(claimed.history_leaf == parent, "the history ends at the message's parent", claimed, question)
        return change

    def _runnable(self, queue: str, tenant: str, now: int) -> list[Row]:
        return [
            job
            for job in self.tables.jobs.values()
            if (job["lane"], job["tenant"], job["status"], job["head"]) == (queue, tenant, "queued", True)
            and job["due_at"] <= now < job["deadline_at"]
        ]

    def _open_lanes(self, queue: str) -> list[Row]:
        """Lanes that had room and something runnable before the step."""
        now = self.tables.now
        return [
            lane
            for (name, tenant), lane in self.tables.lanes.items()
            if name == queue and lane["running"] < lane["running_limit"] and self._runnable(queue, tenant, now)
        ]

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
        dead = not error.retryable or failures >= MAX_FAILURES or late
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
        return self._failed(job, BROKEN, charged=True, late=await self._at(recorded) >= job["deadline_at"])

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
