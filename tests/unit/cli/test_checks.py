"""What `doctor` makes of what it finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.check import without_password
from cli.check_clocks import judge_clock
from cli.check_gateway import check_gateway
from cli.check_models import check_models
from cli.check_names import clashes
from schemas.settings import Settings
from tests.unit.cli.fake_gateway import FakeGateway, Reply

PART = {"ready": True, "detail": "answers"}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@host:1/0", "redis://***@host:1/0"),
        ("postgresql://me:secret@host/db", "postgresql://***@host/db"),
        ("http://host:1", "http://host:1"),
        ("http://[bad", "(an address that cannot be read)"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(("difference", "status"), [(0.2, "ok"), (-1.0, "ok"), (1.2, "warning"), (-90, "warning")])
def test_clocks_may_differ_by_a_second(difference: float, status: str) -> None:
    check = judge_clock("redis clock", difference)
    assert check.status == status
    assert ("behind" in check.message) == (difference < -1)


def test_modules_with_our_names_are_found_and_it_matters_which_comes_first(tmp_path: Path) -> None:
    ours, before, behind = (tmp_path / name for name in ("ours", "before", "behind"))
    for folder in (ours, before, behind):
        folder.mkdir()
    (before / "graph.py").touch()
    (behind / "storage").mkdir()
    (behind / "storage" / "__init__.py").touch()
    (behind / "handlers").mkdir()  # no package: Python takes ours
    (behind / "other.py").touch()
    assert clashes([before, ours, behind, behind], ours) == [(before / "graph.py", True), (behind / "storage", False)]


def settings(**values: Any) -> Settings:
    return Settings.model_validate(values)


@pytest.mark.parametrize(
    ("reply", "status", "said"),
    [
        (Reply(200, {"data": [{"id": "demo"}]}), "ok", "the demo, a scripted stand-in"),
        (Reply(200, {"data": [{"id": "another"}]}), "warning", "not among its models (another"),
        (Reply(200, {"models": []}), "ok", "stand-in"),
        (Reply(401, {}), "wrong", "refuses the key"),
        (Reply(404, {}), "warning", "does not list its models"),
    ],
)
async def test_the_model_is_asked_for_with_its_key(reply: Reply, status: str, said: str) -> None:
    async with FakeGateway(replies={("GET", "/v1/models"): reply}) as server:
        (check,) = await check_models(settings(demo_url=f"{server.url}/v1"))
    assert (check.status, said in check.message) == (status, True)
    assert server.requests[0].headers["authorization"] == "Bearer demo"


async def test_a_model_that_is_not_there_is_wrong_and_the_key_stays_hidden() -> None:
    async with FakeGateway() as server:
        url = server.url
    provider = settings(openai_api_key="sk-very-secret-key", openai_base_url=f"{url}/v1", model="m")
    (check,) = await check_models(provider)
    assert check.status == "wrong"
    assert "very-secret" not in check.message + check.remedy


async def test_every_model_that_a_job_may_name_is_asked_for() -> None:
    async with FakeGateway(replies={("GET", "/v1/models"): Reply(200, {"data": [{"id": "demo"}]})}) as server:
        entry = {"base_url": f"{server.url}/v1", "model": "demo"}
        found = await check_models(settings(demo_url=f"{server.url}/v1", models={"big": entry, "keyless": {}}))
    assert [(check.name, check.status) for check in found] == [
        ("model", "ok"),
        ("model big", "ok"),
        ("model keyless", "wrong"),
    ]


async def test_no_model_at_all_is_wrong() -> None:
    (check,) = await check_models(settings())
    assert (check.status, "OPENAI_API_KEY" in check.remedy) == ("wrong", True)


@pytest.mark.parametrize(
    ("reply", "status", "said"),
    [
        (Reply(200, {"ready": True, "redis": PART, "database": PART, "migrations": PART}), "ok", "is ready"),
        (
            Reply(
                503,
                {
                    "ready": False,
                    "redis": {"ready": False, "detail": "does not answer"},
                    "database": PART,
                    "migrations": PART,
                },
            ),
            "wrong",
            "redis does not answer",
        ),
        (Reply(200, b"<html>", "text/html"), "wrong", "is not chatmill"),
        (Reply(200, {"other": 1}), "wrong", "is not chatmill"),
    ],
)
async def test_the_gateway_says_what_it_misses(reply: Reply, status: str, said: str) -> None:
    async with FakeGateway(replies={("GET", "/readyz"): reply}) as gateway:
        (check,) = await check_gateway(gateway.url)
    assert (check.status, said in check.message) == (status, True)


async def test_a_gateway_that_is_away_is_wrong() -> None:
    async with FakeGateway() as gateway:
        url = gateway.url
    (check,) = await check_gateway(url)
    assert (check.status, "chatmill up" in check.remedy) == ("wrong", True)
