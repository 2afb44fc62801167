"""What a process counts and times, for Prometheus. docs/metrics.md lists it.

Nothing is observed for each token: once a job, once a round trip, once a second at most.
"""

from __future__ import annotations

import os
from pathlib import Path

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from schemas.settings import METRICS_FOLDER_VARIABLE
from storage.jobs.statements import Recorded
from workers.metrics_folder import MetricsFolder

#: Clients choose the names of queues, and a label's values must not grow without bound.
MOST_QUEUES = 50
OTHER = "other"
#: The codes a job may fail with, as docs/events.md lists them; those of frameworks of the user's own are `other`.
KNOWN_CODES = frozenset(
    {
        "agent_error", "agent_stuck", "authentication", "bad_request", "busy", "configuration", "conflict",
        "connection", "cut_off", "deadline", "empty_stream", "insufficient_quota", "invalid", "invalid_tool_call",
        "malformed", "no_agent", "no_answer", "not_found", "not_yet", "provider_error", "rate_limited",
        "released_too_often", "storage", "stream_mismatch", "timeout", "too_large", "too_long", "truncated",
        "unknown_tool", "unstorable", "worker_lost",
    }
)  # fmt: skip
_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_WRITES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_LAGS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0)


class Metrics:
    """All metrics of one process. In a process of its own folder (METRICS_FOLDER_VARIABLE) there may be only one."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"chatmill_{name}", says, labels, registry=self.registry)

        def histogram(name: str, says: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"chatmill_{name}", says, labels, buckets=buckets, registry=self.registry)

        def gauge(name: str, says: str) -> Gauge:
            return Gauge(f"chatmill_{name}", says, registry=self.registry, multiprocess_mode="livesum")

        self._accepted = counter("jobs_accepted", "Jobs accepted, redriven ones included.", "queue")
        self._ended = counter("jobs_ended", "Jobs that ended, by outcome and error code.", "queue", "outcome", "code")
        self._retries = counter("retries", "Attempts that failed and are followed by another.", "queue", "code")
        self._started = counter("attempts_started", "Attempts begun.", "queue")
        self._pickup = histogram("pickup_seconds", "From a job's due time to its claim.", _WAITS, "queue")
        self._first_text = histogram("first_text_seconds", "From the claim to the first text.", _WAITS, "queue")
        self._total = histogram("total_seconds", "From acceptance to the end.", _WAITS, "queue")
        self.settle = histogram("settle_seconds", "Settling an attempt: flush, commit, tell.", _WRITES)
        self.event_write = histogram("event_write_seconds", "One round trip of the event writer.", _WRITES)
        self.events_written = counter("events_written", "Events of attempts that their logs have taken.")
        self.event_write_failures = counter("event_write_failures", "Round trips of the event writer that failed.")
        self.logs_rebuilt = counter("logs_rebuilt", "Event logs that had lost entries and were said again.")
        self.gaps_refilled = counter("gaps_refilled", "Holes in what a client was sent, filled from the log.")
        self.lease_renewals = counter("lease_renewals", "Renewals of a process's leases.")
        self.lease_renewal_failures = counter("lease_renewal_failures", "Renewals that did not reach SQL.")
        self.reconciler_work = counter("reconciler_work", "What reconcilers did again, by kind.", "kind")
        self.reconciler_failures = counter("reconciler_failures", "Passes of a reconciler that failed.")
        self.reconciler_pass = histogram("reconciler_pass_seconds", "One pass of a reconciler.", _WRITES)
        self._quarantined = counter("quarantined", "Queue messages kept because nobody could read them.", "queue")
        self.loop_lag = histogram("loop_lag_seconds", "How late the event loop is, looked at every second.", _LAGS)
        self.open_streams = gauge("open_streams", "Clients that follow a job.")
        self.abandoned_threads = gauge("abandoned_threads", "Threads that run although nobody waits for them any more.")
        self._queues: set[str] = set()

    def accepted(self, queue: str) -> None:
        """A job was accepted, or redriven."""
        self._accepted.labels(self._queue(queue)).inc()

    def attempt_started(self, queue: str, waited_s: float) -> None:
        """A job was claimed, `waited_s` after it was due."""
        name = self._queue(queue)
        self._started.labels(name).inc()
        self._pickup.labels(name).observe(waited_s)

    def first_text(self, queue: str, seconds: float) -> None:
        """An attempt showed its first text, so long after its claim."""
        self._first_text.labels(self._queue(queue)).observe(seconds)

    def total(self, queue: str, seconds: float) -> None:
        """A job ended, so long after its acceptance."""
        self._total.labels(self._queue(queue)).observe(seconds)

    def quarantined(self, queue: str) -> None:
        """A queue message was kept."""
        self._quarantined.labels(self._queue(queue)).inc()

    def moved(self, recorded: Recorded, queue: str) -> None:
        """A transition was committed by this process: counts how the job ended, or that it is tried again."""
        if recorded.kind in ("accept", "redrive"):
            self.accepted(queue)
        if recorded.kind in ("accept", "redrive", "claim", "rebuild", "release", "discard"):
            return
        event = orjson.loads(recorded.event)
        name = self._queue(queue)
        code = _code((event.get("error") or {}).get("code"))
        match event["kind"]:
            case "retrying":
                self._retries.labels(name, code).inc()
            case "final":
                self._ended.labels(name, event.get("outcome", OTHER), "").inc()
            case "cancelled":
                self._ended.labels(name, "cancelled", "").inc()
            case "failed":
                self._ended.labels(name, "dead", code).inc()

    def expose(self) -> bytes:
        """These metrics in Prometheus's text format; those of all processes that share the folder, if there is one."""
        folder = os.environ.get(METRICS_FOLDER_VARIABLE)
        return MetricsFolder(Path(folder)).expose() if folder else generate_latest(self.registry)

    def _queue(self, name: str) -> str:
        if name in self._queues or len(self._queues) < MOST_QUEUES:
            self._queues.add(name)
            return name
        return OTHER


def _code(code: object) -> str:
    return str(code) if code in KNOWN_CODES else OTHER
