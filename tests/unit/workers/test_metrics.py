"""What a process counts, and that its labels stay few."""

from __future__ import annotations

import re
from typing import Any

import pytest

from schemas.job_event import encode_event
from storage.jobs.statements import Recorded
from tests.documents import names, table
from workers.metrics import KNOWN_CODES, MOST_QUEUES, OTHER, Metrics

ERROR = {"code": "provider_error", "message": "m", "retryable": True}
FINAL: dict[str, Any] = {"outcome": "ok", "response": [], "usage": None, "message_ids": []}


def moved(metrics: Metrics, kind: str, event_kind: str, queue: str = "chat", **fields: Any) -> None:
    metrics.moved(Recorded("j", 1, kind, encode_event(event_kind, "j", 0, **fields)), queue)


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"chatmill_{name}", labels) or 0.0


@pytest.mark.parametrize(
    ("kind", "event_kind", "fields", "outcome", "code"),
    [
        ("finish", "final", FINAL, "ok", ""),
        ("finish", "final", {**FINAL, "outcome": "blocked"}, "blocked", ""),
        ("finish", "final", {**FINAL, "outcome": "step_limit"}, "step_limit", ""),
        ("cancel", "cancelled", {"reason": "r", "response": [], "message_ids": []}, "cancelled", ""),
        ("fail", "failed", {"error": ERROR, "dead_letter_id": "d"}, "dead", "provider_error"),
        ("expire", "failed", {"error": {**ERROR, "code": "worker_lost"}, "dead_letter_id": "d"}, "dead", "worker_lost"),
        ("lapse", "failed", {"error": {**ERROR, "code": "deadline"}, "dead_letter_id": "d"}, "dead", "deadline"),
        ("fail", "failed", {"error": {**ERROR, "code": "of their own"}, "dead_letter_id": "d"}, "dead", OTHER),
    ],
)
def test_every_kind_of_end_is_counted_once(
    kind: str, event_kind: str, fields: dict[str, Any], outcome: str, code: str
) -> None:
    metrics = Metrics()
    moved(metrics, kind, event_kind, **fields)
    assert value(metrics, "jobs_ended_total", queue="chat", outcome=outcome, code=code) == 1
    samples = [s for family in metrics.registry.collect() for s in family.samples if s.name.endswith("ended_total")]
    assert sum(sample.value for sample in samples) == 1


def test_what_ends_nothing_is_not_counted_as_an_end() -> None:
    metrics = Metrics()
    moved(metrics, "accept", "queued", queue="chat", session_id="s")
    moved(metrics, "redrive", "queued", session_id="s")
    moved(metrics, "claim", "started", attempt=1, worker="w")
    moved(metrics, "release", "requeued", reason="shutdown")
    moved(metrics, "fail", "retrying", error=ERROR, retry_at="t")
    moved(metrics, "discard", "failed", error=ERROR, dead_letter_id="d")
    samples = [s for family in metrics.registry.collect() for s in family.samples if s.name.endswith("ended_total")]
    assert samples == []
    assert value(metrics, "jobs_accepted_total", queue="chat") == 2
    assert value(metrics, "retries_total", queue="chat", code="provider_error") == 1


def test_clients_cannot_make_labels_without_end() -> None:
    metrics = Metrics()
    for number in range(MOST_QUEUES + 20):
        metrics.accepted(f"queue{number}")
        metrics.attempt_started(f"queue{number}", 0.1)
    assert value(metrics, "jobs_accepted_total", queue=OTHER) == 20
    assert value(metrics, "jobs_accepted_total", queue="queue0") == 1
    exposed = metrics.expose().decode()
    assert len(set(re.findall('queue="([^"]+)"', exposed))) == MOST_QUEUES + 1


def test_the_known_codes_are_those_the_documents_list() -> None:
    assert {name for row in table("docs/events.md", "Why jobs fail") for name in names(row[0])} == KNOWN_CODES


def test_the_documents_list_every_metric_with_its_type_and_labels() -> None:
    documented = {names(row[0])[0]: row[1] for row in table("docs/metrics.md", "What processes count")}
    expected = {}
    for family in Metrics().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        expected[name + LABELS.get(name, "")] = family.type
    assert documented == expected


#: Those that have labels; a metric without any observation does not say which.
LABELS = {
    "chatmill_jobs_accepted_total": "{queue}",
    "chatmill_jobs_ended_total": "{queue,outcome,code}",
    "chatmill_retries_total": "{queue,code}",
    "chatmill_attempts_started_total": "{queue}",
    "chatmill_pickup_seconds": "{queue}",
    "chatmill_first_text_seconds": "{queue}",
    "chatmill_total_seconds": "{queue}",
    "chatmill_reconciler_work_total": "{kind}",
    "chatmill_quarantined_total": "{queue}",
}
