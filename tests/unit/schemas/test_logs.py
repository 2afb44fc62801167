"""What reaches the log, and what never does."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from schemas.logs import configure_logging, mask_secrets


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Logging as the other tests had it."""
    root = logging.getLogger()
    handlers, level, configuration = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
    structlog.configure(**configuration)
    structlog.contextvars.clear_contextvars()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What was written to stderr."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_an_event_is_one_line_of_json_with_its_context(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    structlog.contextvars.bind_contextvars(job_id="j1")
    structlog.get_logger().info("attempt started", attempt=1)
    (line,) = lines(capsys)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert (line["level"], line["event"], line["job_id"], line["attempt"]) == ("info", "attempt started", "j1", 1)


def test_libraries_go_through_the_same_renderer(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    logging.getLogger("somewhere").warning("lost %s of %d", "one", 3)
    logging.getLogger("somewhere").debug("chatter")
    (line,) = lines(capsys)
    assert (line["level"], line["event"]) == ("warning", "lost one of 3")


def test_what_people_wrote_is_left_out_unless_everything_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"message": "dear diary", "text": "dear diary", "content": "dear diary", "system": "dear diary"}
    configure_logging("info", "json")
    structlog.get_logger().error("failed", job_id="j1", **fields)
    configure_logging("debug", "json")
    structlog.get_logger().debug("failed", **fields)
    quiet, loud = lines(capsys)
    assert "dear diary" not in json.dumps(quiet)
    assert quiet["job_id"] == "j1"
    assert loud["text"] == "dear diary"


def test_secrets_are_masked_wherever_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    log = structlog.get_logger()
    log.info("calling", key="sk-proj-abcdef123456", url="redis://:hunter2@127.0.0.1/0", nested={"api_key": "hunter2"})
    log.info("header", headers=["Authorization: Bearer hunter2hunter2"], password="hunter2")
    logging.getLogger("lib").error("postgresql+psycopg://me:hunter2@db/chat refused")
    try:
        raise ValueError("token=hunter2")
    except ValueError:
        log.exception("failed")
    written = capsys.readouterr().err
    assert "hunter2" not in written
    assert "abcdef123456" not in written
    assert "ValueError" in written
    assert written.count("\n") == 4


@pytest.mark.parametrize(
    "text",
    ["risk-free sk- and asks", "a bearer of news", "http://localhost:8080/v1/jobs", "tokens: 12", "at 12:30@noon"],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert mask_secrets(text) == text


def test_what_cannot_be_json_does_not_stop_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    structlog.get_logger().info("odd", lone="\ud800", big=2**80, thing=object(), pieces=(b"x", {1: 2}))
    (line,) = lines(capsys)
    assert line["event"] == "odd"
    assert line["big"] == 2**80


def test_a_terminal_gets_readable_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "console")
    structlog.get_logger().info("the gateway listens", url="http://127.0.0.1:8080")
    assert "the gateway listens" in capsys.readouterr().err


def test_auto_is_json_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "auto")
    structlog.get_logger().info("hello")
    assert lines(capsys)[0]["event"] == "hello"
