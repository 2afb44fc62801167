"""What goes wrong with a command."""

from __future__ import annotations

import pytest

from tests.unit.cli.command import chatmill
from tests.unit.cli.event_logs import JOB_ID


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--url", "http://127.0.0.1:1", "jobs"], 3, "chatmill up"),
        (["--url", "http://127.0.0.1:1", "submit", "hi", "-f"], 3, "nobody answers"),
        (["--url", "http://127.0.0.1:1", "chat"], 3, "nobody answers"),
        (["--url", "nonsense", "jobs"], 2, "http://host:port"),
        (["jobs", "show", "../x"], 2, "ids are UUIDs"),
        (["follow", JOB_ID, "--after", "x"], 2, "--after"),
        (["submit", "hi", "--param", "x"], 2, "name=value"),
        (["--config", "nowhere.toml", "jobs"], 2, "nowhere.toml"),
        (["jobs", "--json", "show", JOB_ID], 2, "options go behind the command: chatmill jobs show"),
        (["nonsense"], 2, "No such command"),
    ],
)
async def test_what_goes_wrong_is_told_on_stderr_and_by_the_exit_code(
    arguments: list[str], code: int, said: str
) -> None:
    ended = await chatmill(*arguments)
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err
    assert "Traceback" not in ended.err
