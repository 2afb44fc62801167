"""What an operator sees at a glance: queues, workers, throughput, and what lies there and waits for somebody."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from schemas.heartbeat import WorkerHeartbeat


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class QueueOverview(_View):
    """One queue. A queue without jobs, pause or worker is not told."""

    name: str
    queued: int = Field(description="Jobs that wait, whatever for.")
    due: int = Field(description="Those that might run now if there were room for them.")
    oldest_due_s: float | None = Field(description="How long the oldest due one has waited; null: none is due.")
    running: int
    paused: bool
    pause_reason: str | None
    paused_at: str | None
    workers: int | None = Field(description="Worker processes that serve it; null while Redis is away.")


class WorkerOverview(WorkerHeartbeat):
    """A worker process, by its last sign of life."""

    age_s: float = Field(description="How old the sign is.")
    faults: list[str] = Field(description="What is wrong with it; empty: it is well.")


class Rates(_View):
    """What became of jobs in the last `seconds`, which are up to 10 fewer than the name says."""

    seconds: float
    finished: int
    dead: int = Field(description="Given up: dead letters.")
    retried: int = Field(description="Attempts that failed and are followed by another.")
    cancelled: int


class ThroughputOverview(_View):
    last_minute: Rates
    last_5_minutes: Rates
    slice_s: int
    finished_by_slice: list[int] = Field(description="Finished jobs of the last 5 minutes by slice, the oldest first.")


class BreakerOverview(_View):
    """An open breaker: a provider and model that failed job after job."""

    name: str
    failures: int = Field(description="In a row.")
    opened_at: str
    probe_at: str | None = Field(description="When the next job may try.")
    held: int = Field(description="Jobs that wait for it.")


class FailureOverview(_View):
    """A job that was given up."""

    job_id: str
    dead_letter_id: str
    queue: str
    error_code: str
    at: str
    resolution: str | None = Field(description="`redriven` or `discarded`; null while it lies there.")


class Overview(_View):
    """Everything but `failures` is over all tenants. Times are RFC 3339 in UTC, by the database's clock."""

    at: str
    version: str = Field(description="The gateway's.")
    queues: list[QueueOverview]
    workers: list[WorkerOverview] | None = Field(description="null while Redis is away.")
    throughput: ThroughputOverview
    breakers: list[BreakerOverview] = Field(description="The open ones.")
    dead_letters: int = Field(description="That lie there; counted up to 100,000, like queued and running jobs.")
    quarantine: int = Field(description="Queue messages nobody could read, that lie there.")
    failures: list[FailureOverview] = Field(description="The asking tenant's newest dead letters, at most 10.")
    notes: list[str] = Field(description="What could not be found out, and what to know of these numbers.")
