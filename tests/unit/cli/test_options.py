"""Where the command line finds the gateway and the services' addresses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cli.failure import WrongUsage
from cli.job_options import parse_parameters
from cli.options import Options, checked_id, running_up
from schemas.settings import load_settings

#: Beyond what Linux and macOS number their processes with.
NOBODY = 2**22 + 7


def write_run(folder: Path = Path(".chatmill"), *, pid: int | None = None, **addresses: str) -> None:
    folder.mkdir(exist_ok=True)
    run: dict[str, Any] = {"pid": os.getpid() if pid is None else pid, **addresses}
    (folder / "run.json").write_text(json.dumps(run))


def test_the_gateway_is_on_this_machine_if_nobody_says_otherwise() -> None:
    assert Options().gateway_url() == "http://127.0.0.1:8080"


def test_the_more_special_address_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(url="http://127.0.0.1:1001")
    assert Options().gateway_url() == "http://127.0.0.1:1001"
    Path("chatmill.toml").write_text('url = "http://127.0.0.1:1002"\n')
    assert Options().gateway_url() == "http://127.0.0.1:1002"
    monkeypatch.setenv("CHATMILL_URL", "http://127.0.0.1:1003")
    assert Options().gateway_url() == "http://127.0.0.1:1003"
    assert Options(url="http://127.0.0.1:1004").gateway_url() == "http://127.0.0.1:1004"


def test_the_run_file_is_looked_for_in_the_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATMILL_DATA_DIR", "elsewhere")
    write_run(Path("elsewhere"), url="http://127.0.0.1:1001")
    assert Options().gateway_url() == "http://127.0.0.1:1001"


@pytest.mark.parametrize("pid", [NOBODY, 0, -1])
def test_an_up_that_is_gone_is_not_asked(pid: int) -> None:
    write_run(pid=pid, url="http://127.0.0.1:1001")
    assert running_up(Path(".chatmill")) == {}
    assert Options().gateway_url() == "http://127.0.0.1:8080"


def test_a_service_joins_a_running_up() -> None:
    write_run(redis_url="redis://127.0.0.1:7001/0", database_url="sqlite:////x.db", demo_url="http://127.0.0.1:7002/v1")
    settings, source = Options().service_settings({"queue": "bulk"})
    assert source is not None
    assert f"process {os.getpid()}" in source
    assert settings.redis_url.get_secret_value() == "redis://127.0.0.1:7001/0"
    assert settings.sqlalchemy_url == "sqlite:////x.db"
    assert settings.demo_url == "http://127.0.0.1:7002/v1"
    assert settings.queue == "bulk"
    assert load_settings().demo_url == settings.demo_url  # as the worker's own processes will read it


@pytest.mark.parametrize("name", ["REDIS_URL", "DATABASE_URL"])
def test_a_service_with_an_address_of_its_own_takes_nothing_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(redis_url="redis://127.0.0.1:7001/0", database_url="sqlite:////x.db")
    monkeypatch.setenv(name, "redis://own" if name == "REDIS_URL" else "sqlite:////own.db")
    settings, source = Options().service_settings()
    assert source is None
    assert "7001" not in settings.redis_url.get_secret_value()
    assert settings.sqlalchemy_url != "sqlite:////x.db"


def test_an_id_is_checked_before_anybody_is_asked() -> None:
    assert checked_id("01A22E79F7E67B5AA83E41FE332E9D55", "job") == "01a22e79-f7e6-7b5a-a83e-41fe332e9d55"
    with pytest.raises(WrongUsage, match=r"'\.\./x' is not the id of a job"):
        checked_id("../x", "job")


def test_parameters_are_json_or_text() -> None:
    assert parse_parameters(["temperature=0.5", 'stop=["a"]', "name=x=y", "n=07"]) == {
        "temperature": 0.5,
        "stop": ["a"],
        "name": "x=y",
        "n": "07",
    }
    for wrong in ("temperature", "=1"):
        with pytest.raises(WrongUsage, match="name=value"):
            parse_parameters([wrong])
