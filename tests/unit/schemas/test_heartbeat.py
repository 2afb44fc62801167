"""What is wrong with a worker, by its sign of life."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.heartbeat import WorkerHeartbeat

WELL: dict[str, Any] = {
    "worker": "w", "host": "h", "pid": 1, "queue": "chat", "running": 0, "threads": 1, "version": "1",
    "started_at": "2026-01-01T00:00:00.000Z", "at": "2026-01-01T01:00:00.000Z",
    "polled_s_ago": 0.5, "loop_lag_s": 0.0, "closing": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "age_s", "words"),
    [
        ({}, 3.0, []),
        ({}, 16.0, ["stands still"]),
        ({}, -3600.0, ["stands still"]),  # the clock was set back
        ({"loop_lag_s": 9.0, "polled_s_ago": 14.0}, 3.0, []),
        ({"loop_lag_s": 12.0}, 3.0, ["event loop is blocked for 12 s"]),
        ({"polled_s_ago": 16.0}, 3.0, ["not polled Redis for 16 s"]),
        ({"polled_s_ago": None}, 3.0, ["not polled Redis since it started"]),
        ({"polled_s_ago": None, "started_at": "2026-01-01T00:59:55.000Z"}, 3.0, ["it is starting"]),
        ({"polled_s_ago": 60.0, "closing": True}, 3.0, []),
        ({"polled_s_ago": 60.0, "loop_lag_s": 60.0, "closing": True}, 60.0, ["stands still", "blocked"]),
    ],
)
def test_each_fault_is_named_and_no_other(changes: dict[str, Any], age_s: float, words: list[str]) -> None:
    faults = WorkerHeartbeat.model_validate({**WELL, **changes}).find_faults(age_s, 15.0)
    assert len(faults) == len(words)
    for fault, word in zip(faults, words, strict=True):
        assert word in fault


@pytest.mark.parametrize("name", ["at", "started_at"])
@pytest.mark.parametrize("value", ["never", "", "2026-01-01T00:00:00"])
def test_a_sign_without_a_time_is_none(name: str, value: str) -> None:
    with pytest.raises(ValidationError):
        WorkerHeartbeat.model_validate({**WELL, name: value})


def test_what_a_newer_worker_says_besides_is_ignored() -> None:
    assert WorkerHeartbeat.model_validate({**WELL, "mood": "good"}).worker == "w"
