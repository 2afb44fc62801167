"""The steps of the random walk that bring jobs in and give them to workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import update

from schemas.chat_job import ChatJob
from schemas.errors import InvalidRequest, NotFound, SessionBusy
from storage.jobs import accept, claim
from storage.lanes import is_alone, queue_of
from storage.tables import lanes
from tests.integration.storage.acts import FRAMEWORK, LEASE_US
from tests.integration.storage.rules import Row, require
from tests.integration.storage.walk import (
    LANES,
    MODELS,
    NOTHING,
    QUEUES,
    TENANTS,
    WORKERS,
    Change,
    Held,
    Walk,
    unfinished,
)


class ClaimWalk(Walk):
    """Accepting and claiming."""

    async def accept_a_job(self) -> Change:
        (tenant,) = self.rng.choices(TENANTS, (6, 3, 2))
        about: dict[str, Any] = {
            "tenant": tenant,
            "queue": self.rng.choices(QUEUES, (3, 1))[0],
            "priority": self.rng.choice((-1, 0, 0, 1)),
            "deadline_s": self.rng.choice((8, 20, 600, 600, 600)),
            "model": self.rng.choices(MODELS, (2, 1))[0],
        }
        sessions = [one["id"] for one in self.tables.sessions.values() if one["tenant"] == tenant and not one["hidden"]]
        if sessions and self.chance(0.5):
            about["session_id"] = self.rng.choice(sessions)
            about["if_busy"] = self.rng.choices(("enqueue", "reject", "interrupt"), (6, 1, 1))[0]
        job = ChatJob(message=f"question {self.rng.random()}", **about)
        busy = [one for one in self.tables.jobs.values() if one["session_id"] == job.session_id and unfinished(one)]
        if job.if_busy == "reject" and busy:
            return await self._refused(job)
        return await self._accept(job, stops=busy if job.if_busy == "interrupt" else [])

    async def _refused(self, job: ChatJob) -> Change:
        try:
            await self.database.write(accept.accept, job, FRAMEWORK)
        except SessionBusy:
            self.seen["busy session refused"] += 1
            return NOTHING
        require(False, "a busy session refuses who does not want to wait", job)
        return NOTHING

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

    async def _accept(self, job: ChatJob, new_messages: int = 1, stops: Sequence[Row] = ()) -> Change:
        accepted = await self.database.write(accept.accept, job, FRAMEWORK)
        require(accepted.created, "a new job is made", accepted)
        self.known.append(job)
        if job.tenant == "narrow":
            narrow = update(lanes).where(lanes.c.tenant == "narrow").values(running_limit=1)
            await self.database.write(lambda connection: connection.execute(narrow))
        self.seen["accepted behind another"] += accepted.recorded is not None and accepted.recorded.wakes is None
        change = Change(new_jobs=1, new_messages=new_messages)
        for stopped in stops:
            if stopped["status"] == "queued":
                change.jobs.update(self.left({**stopped, "head": False}, "cancelled").jobs)
                self.seen["interrupted while it waited"] += 1
            else:
                reason = stopped["cancel_reason"] or "interrupted"
                change.jobs[stopped["id"]] = {"cancel_reason": reason}
                self.seen["interrupted while it ran"] += 1
        told = {one.job_id for one in accepted.interrupted.cancelled} | set(accepted.interrupted.stopping)
        require(told == {one["id"] for one in stops}, "who was stopped is told", accepted, stops)
        return change

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
        queue, worker = self.rng.choices(LANES, (6, 2, 2, 1))[0], self.rng.choice(WORKERS)
        claimed = await self.database.write(claim.claim, queue, worker, LEASE_US)
        open_lanes = self._open_lanes(queue)
        self.seen["lane full"] += any(lane["running"] >= lane["running_limit"] for lane in self.tables.lanes.values())
        if claimed is None:
            require(not open_lanes, "what is runnable is found", open_lanes)
            self.seen["claim found nothing"] += 1
            return NOTHING
        require(queue_of(queue) not in self.paused, "a paused queue starts nothing", claimed)
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
        self.seen["claimed to run alone"] += is_alone(job["lane"])
        self.seen["claimed again after a redrive"] += job["attempt"] > 0 and job["failures"] == 0
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
        if queue_of(queue) in self.paused:
            return []
        now = self.tables.now
        return [
            lane
            for (name, tenant), lane in self.tables.lanes.items()
            if name == queue and lane["running"] < lane["running_limit"] and self._runnable(queue, tenant, now)
        ]
