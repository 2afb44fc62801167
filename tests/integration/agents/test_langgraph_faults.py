"""Whatever a provider does ends in a whole answer or in a failure that says what follows."""

from __future__ import annotations

import pytest

from schemas.agent_message import AgentMessage
from tests.demo_server import DemoServer
from tests.integration.agents.asking import ask, session


@pytest.mark.parametrize(
    ("fault", "code", "retryable"),
    [
        ("status-400", "bad_request", False),
        ("status-401", "authentication", False),
        ("status-403", "authentication", False),
        ("status-404", "bad_request", False),
        ("status-429", "rate_limited", True),
        ("status-500", "provider_error", True),
        ("status-503", "provider_error", True),
        ("html-502", "provider_error", True),
        ("empty-500", "provider_error", True),
        ("detail-422", "bad_request", False),
        ("plain-error-400", "bad_request", False),
        ("context-length", "too_long", False),
        ("insufficient-quota", "insufficient_quota", False),
        ("reset", "connection", True),
        ("cut", "truncated", True),
        ("cut-close", "truncated", True),
        ("cut-in-event", "truncated", True),
        ("eof", "truncated", True),
        ("eof-whole-text", "truncated", True),
        ("eof-in-event", "truncated", True),
        ("eof-in-character", "truncated", True),
        ("only-role", "truncated", True),
        ("zero-bytes", "empty_stream", True),
        ("only-done", "empty_stream", True),
        ("html", "empty_stream", True),
        ("json-not-stream", "provider_error", True),
        ("json-error-200", "provider_error", True),
        ("not-json", "provider_error", True),
        ("error-only", "provider_error", True),
        ("error-after-text", "provider_error", True),
        ("error-then-done", "provider_error", True),
        ("error-string", "provider_error", True),
        ("error-event", "provider_error", True),
        ("error-rate-limit", "rate_limited", True),
        ("error-bad-request", "bad_request", False),
        ("no-headers", "timeout", True),
        ("silence", "timeout", True),
        ("silence-midway", "timeout", True),
        ("tool-loop-unknown", "unknown_tool", True),
    ],
)
async def test_a_reply_that_is_not_whole_is_a_failure(demo: DemoServer, fault: str, code: str, retryable: bool) -> None:
    answer = await ask(session(demo, f"demo-fault-{fault}"), "hello")

    assert answer.error is not None
    assert (answer.error.code, answer.error.retryable) == (code, retryable)
    assert answer.error.charged is (code != "rate_limited")
    assert "sk-secret" not in str(answer.error)


async def test_a_comment_now_and_then_does_not_hide_that_nothing_comes(demo: DemoServer) -> None:
    answer = await ask(session(demo, "demo-fault-silence-heartbeats"), "hello")

    assert answer.error is not None
    assert answer.error.code == "timeout"


async def test_a_provider_says_how_long_to_wait(demo: DemoServer) -> None:
    answer = await ask(session(demo, "demo-fault-status-429"), "[retry-after=5] hello")

    assert answer.error is not None
    assert answer.error.retry_after == 5.0


async def test_nobody_at_the_address_is_a_connection_failure(unused_tcp_port: int) -> None:
    nobody = DemoServer(f"http://127.0.0.1:{unused_tcp_port}/v1", 0)
    answer = await ask(session(nobody), "hello")

    assert answer.error is not None
    assert (answer.error.code, answer.error.retryable) == ("connection", True)


@pytest.mark.parametrize(
    "fault",
    [
        "done-no-finish", "finish-no-done", "silence-after-finish", "silence-after-done", "crlf", "crlf-split", "cr",
        "no-space", "comments", "retry-lines", "event-names", "data-lines", "bom", "byte-by-byte", "split-characters",
        "one-write", "no-delta", "null-delta", "null-content", "empty-choices", "null-choices", "no-choices",
        "usage-first", "usage-everywhere", "role-everywhere", "unknown-fields", "finish-with-last-word",
        "finish-empty-string", "finish-unknown", "reasoning", "refuses-null-content", "refuses-empty-content",
    ],
)  # fmt: skip
async def test_an_odd_but_whole_reply_is_an_answer(demo: DemoServer, fault: str) -> None:
    usual = await ask(session(demo), "hello")
    odd = await ask(session(demo, f"demo-fault-{fault}"), "hello")

    assert odd.text == usual.text
    assert odd.final.outcome == "ok"


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("surrogate-split", "a\U0001f600b"),
        ("surrogate-lone", "a\ufffdb"),
        ("surrogate-last", "a\ufffd"),
        ("nul", "a\ufffdb"),
    ],
)
async def test_text_that_cannot_be_stored_is_repaired(demo: DemoServer, fault: str, text: str) -> None:
    assert (await ask(session(demo, f"demo-fault-{fault}"), "hello")).text == text


async def test_a_model_that_says_nothing_gives_an_empty_reply(demo: DemoServer) -> None:
    answer = await ask(session(demo, "demo-fault-empty"), "hello")

    assert answer.response == [AgentMessage.assistant("")]
    assert answer.final.outcome == "ok"


@pytest.mark.parametrize("fault", ["content-filter", "content-filter-after-text", "refusal", "prompt-blocked"])
async def test_a_filtered_answer_ends_as_blocked_with_something_to_read(demo: DemoServer, fault: str) -> None:
    answer = await ask(session(demo, f"demo-fault-{fault}"), "hello")

    assert answer.final.outcome == "blocked"
    assert len(answer.text) > 10
