"""Events as clients see them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from schemas.job_event import TERMINAL_KINDS, JobEvent, encode_event, is_terminal, rfc3339

EVENTS: TypeAdapter[Any] = TypeAdapter(JobEvent)
ERROR = {"code": "timeout", "message": "it took too long", "retryable": True}
ANSWER = {"response": [{"role": "assistant", "content": "hi"}], "message_ids": ["m"]}
SAMPLES: dict[str, dict[str, Any]] = {
    "queued": {"queue": "chat", "session_id": "s"},
    "started": {"attempt": 1, "worker": "w"},
    "snapshot": {"text": "so far", "tools": [{"id": "c", "name": "t", "status": "finished", "result": "r"}]},
    "text": {"text": "hi"},
    "tool": {"tool": {"id": "c", "name": "t", "status": "started", "args": {"a": 1}}},
    "retrying": {"error": ERROR, "retry_at": "2026-11-30T12:00:00.000Z"},
    "requeued": {"reason": "shutdown"},
    "final": {**ANSWER, "outcome": "ok", "usage": None},
    "failed": {"error": ERROR, "dead_letter_id": "d"},
    "cancelled": {**ANSWER, "reason": "user"},
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_every_kind_is_one_line_of_json_that_its_model_reads(kind: str) -> None:
    encoded = encode_event(kind, "j", 1_700_000_000_123_456, **SAMPLES[kind])
    assert b"\n" not in encoded
    assert json.loads(encoded) == {"kind": kind, "job_id": "j", "at": "2023-11-14T22:13:20.123Z", **SAMPLES[kind]}
    assert EVENTS.validate_json(encoded).kind == kind


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_end_of_a_job_is_told_from_the_bytes(kind: str) -> None:
    encoded = encode_event(kind, "j", 1, **SAMPLES[kind])
    assert is_terminal(encoded) == (kind in TERMINAL_KINDS)


def test_a_text_that_looks_like_an_end_is_none() -> None:
    assert not is_terminal(encode_event("text", "j", 1, text='{"kind":"final"'))


def test_a_reader_of_this_version_ignores_what_a_newer_one_adds() -> None:
    assert EVENTS.validate_python({"kind": "text", "job_id": "j", "at": "a", "text": "hi", "mood": "x"}).text == "hi"


def test_an_unknown_kind_is_said_to_be_one() -> None:
    with pytest.raises(ValidationError, match="kind"):
        EVENTS.validate_python({"kind": "hologram", "job_id": "j", "at": "a"})


@pytest.mark.parametrize(
    ("at_us", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (999, "1970-01-01T00:00:00.000Z"),
        (1_000, "1970-01-01T00:00:00.001Z"),
        (999_999, "1970-01-01T00:00:00.999Z"),
        (1_000_000, "1970-01-01T00:00:01.000Z"),
        (1_700_000_000_123_999, "2023-11-14T22:13:20.123Z"),
    ],
)
def test_times_are_rfc_3339_in_utc_with_milliseconds_rounded_down(at_us: int, text: str) -> None:
    assert rfc3339(at_us) == text
