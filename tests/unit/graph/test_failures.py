"""Every failure of a provider becomes one error whose code and flags say what follows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx2
import openai
import pytest

from graph.failures import failure_of, is_filtered

REQUEST = httpx2.Request("POST", "http://user:secret@127.0.0.1/v1/chat/completions")


def status_error(status: int, body: Any = None, headers: dict[str, str] | None = None) -> openai.APIStatusError:
    response = httpx2.Response(status, request=REQUEST, headers=headers)
    return openai.APIStatusError("sk-secret was refused", response=response, body=body)


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "bad_request", False),
        (401, "authentication", False),
        (402, "insufficient_quota", False),
        (403, "authentication", False),
        (404, "bad_request", False),
        (408, "timeout", True),
        (409, "provider_error", True),
        (413, "too_long", False),
        (422, "bad_request", False),
        (429, "rate_limited", True),
        (500, "provider_error", True),
        (529, "provider_error", True),
    ],
)
def test_a_status_decides_what_follows(status: int, code: str, retryable: bool) -> None:
    failure = failure_of(status_error(status))

    assert (failure.code, failure.retryable) == (code, retryable)
    assert failure.charged is (status != 429)


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens.",
        "Input tokens exceed the configured limit of 272000 tokens.",
        "prompt is too long: 200001 tokens > 200000 maximum",
        "the request exceeds the available context size; context window is 4096",
    ],
)
def test_a_conversation_that_is_too_long_is_recognised_by_its_message(message: str) -> None:
    response = httpx2.Response(400, request=REQUEST)
    failure = failure_of(openai.BadRequestError(message, response=response, body=None))

    assert (failure.code, failure.retryable) == ("too_long", False)


def test_a_quota_that_is_used_up_is_not_waited_for() -> None:
    failure = failure_of(status_error(429, {"code": "insufficient_quota"}))

    assert (failure.code, failure.retryable) == ("insufficient_quota", False)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after": "999999"}, 3600.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_a_provider_says_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert failure_of(status_error(429, headers=headers)).retry_after == seconds


def test_a_provider_may_name_a_date_to_wait_for() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)

    wait = failure_of(status_error(429, headers={"retry-after": date})).retry_after

    assert wait is not None
    assert 55 < wait <= 60


def test_a_date_that_has_passed_is_no_wait() -> None:
    assert failure_of(status_error(429, headers={"retry-after": "Mon, 01 Jan 2024 00:00:00 GMT"})).retry_after == 0.0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"code": "rate_limit_exceeded"}, "rate_limited"),
        ({"type": "invalid_request_error"}, "bad_request"),
        ({"code": 429}, "rate_limited"),
        ({"code": "503"}, "provider_error"),
        ({"code": "context_length_exceeded"}, "too_long"),
        ({"message": "x"}, "provider_error"),
        ("the model is gone", "provider_error"),
        (None, "provider_error"),
    ],
)
def test_an_error_inside_a_stream_is_recognised_by_its_code(body: object, code: str) -> None:
    assert failure_of(openai.APIError("x", request=REQUEST, body=body)).code == code


def test_silence_and_no_connection_are_told_apart() -> None:
    never_connected = openai.APITimeoutError(request=REQUEST)
    never_connected.__cause__ = httpx2.ConnectTimeout("")

    assert failure_of(never_connected).code == "connection"
    assert failure_of(openai.APITimeoutError(request=REQUEST)).code == "timeout"
    assert failure_of(httpx2.ReadTimeout("")).code == "timeout"
    assert failure_of(openai.APIConnectionError(request=REQUEST)).code == "connection"
    assert failure_of(httpx2.RemoteProtocolError("")).code == "truncated"


def test_what_is_not_a_chat_completion_may_be_tried_again() -> None:
    failure = failure_of(ValueError("x"))

    assert (failure.code, failure.retryable) == ("provider_error", True)


def test_an_error_nobody_expected_names_its_type_only() -> None:
    failure = failure_of(RuntimeError("sk-secret"))

    assert failure.code == "agent_error"
    assert "RuntimeError" in str(failure)
    assert "secret" not in str(failure)


def test_messages_hold_the_providers_codes_and_none_of_its_words() -> None:
    body = {"error": {"code": "bad thing: sk-secret", "param": "messages[2].content", "message": "sk-secret"}}

    message = str(failure_of(status_error(400, body)))

    assert "messages[2].content" in message
    assert "secret" not in message


@pytest.mark.parametrize("code", ["content_filter", "content_policy_violation"])
def test_a_refusal_for_the_content_is_not_an_error_like_others(code: str) -> None:
    assert is_filtered(status_error(400, {"code": code}))
    assert not is_filtered(status_error(400, {"code": "other"}))
    assert not is_filtered(ValueError())
