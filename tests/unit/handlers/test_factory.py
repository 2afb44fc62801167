"""Handlers are found by the name of their framework."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

import handlers.factory
from handlers.echo_handler import EchoHandler
from handlers.factory import FRAMEWORK_CHOICES, HandlerFactory, get_agent_handler
from schemas.agent_session import AgentSession
from schemas.errors import ConfigurationError, InvalidRequest
from tests.unit.handlers.plugin import Mine

PLUGIN = "tests.unit.handlers.plugin"


def session(framework: str) -> AgentSession:
    return AgentSession(session_id="s", agent_framework=framework)


def test_a_framework_that_ships_with_chatmill_is_found() -> None:
    assert isinstance(get_agent_handler(session("echo")), EchoHandler)
    assert isinstance(HandlerFactory().handler_for(session("echo")), EchoHandler)


def test_nobody_answers_for_none() -> None:
    assert get_agent_handler(session("none")) is None
    assert HandlerFactory().handler_for(session("none")) is None


def test_every_choice_is_a_framework() -> None:
    assert {name for name, _ in FRAMEWORK_CHOICES} == {*HandlerFactory().names, "none"}


def test_an_unknown_framework_is_a_fault_of_the_request_that_lists_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="known are: echo, langgraph, mine") as caught:
        HandlerFactory({"mine": f"{PLUGIN}:Mine"}).handler_for(session("nope"))
    assert caught.value.field == "agent_framework"
    with pytest.raises(InvalidRequest):
        get_agent_handler(session("nope"))


def test_a_framework_of_the_users_own_is_added_by_its_path() -> None:
    handler = HandlerFactory({"mine": f"{PLUGIN}:Mine"}).handler_for(session("mine"))

    assert isinstance(handler, Mine)


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("no_colon", "colon"),
        (":Mine", "colon"),
        ("no.such.module:Mine", "install it"),
        (f"{PLUGIN}:Nothing", "after the colon"),
        (f"{PLUGIN}:NOT_A_TOOL", "BaseAgentHandler"),
        (f"{PLUGIN}:ONE", "BaseAgentHandler"),
        (f"{PLUGIN}:Unfinished", "astream, invoke"),
        ("tests.unit.handlers.broken_plugin:Mine", "half an import"),
    ],
)
def test_a_path_that_leads_nowhere_is_said_at_start_in_one_line(path: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy) as caught:
        HandlerFactory({"mine": path})
    assert str(caught.value).startswith("frameworks.mine: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["langgraph", "echo", "none"])
def test_the_name_of_a_built_in_framework_cannot_be_taken(name: str) -> None:
    with pytest.raises(ConfigurationError, match="taken"):
        HandlerFactory({name: f"{PLUGIN}:Mine"})


def test_an_installed_package_adds_a_framework_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="theirs", value=f"{PLUGIN}:Mine", group=handlers.factory.ENTRY_POINT_GROUP)
    monkeypatch.setattr(handlers.factory, "entry_points", lambda group: EntryPoints([point]).select(group=group))

    assert isinstance(HandlerFactory().handler_for(session("theirs")), Mine)
    with pytest.raises(ConfigurationError, match="'theirs' is taken"):
        HandlerFactory({"theirs": f"{PLUGIN}:Mine"})


async def test_closing_releases_what_the_handlers_used_share() -> None:
    factory = HandlerFactory({"mine": f"{PLUGIN}:Mine"})
    before = Mine.closed
    await factory.close()
    assert Mine.closed == before

    factory.handler_for(session("mine"))
    await factory.close()
    assert Mine.closed == before + 1


def test_preloading_prepares_every_framework() -> None:
    before = Mine.prepared

    HandlerFactory({"mine": f"{PLUGIN}:Mine"}).preload()

    assert Mine.prepared == before + 1


def test_langgraph_is_not_imported_before_it_is_needed() -> None:
    program = (
        "import sys\n"
        "from handlers.factory import HandlerFactory\n"
        "import handlers.tools\n"
        "factory = HandlerFactory()\n"
        "assert 'langgraph' not in sys.modules and 'langchain_core' not in sys.modules\n"
        "factory.preload()\n"
        "assert 'langgraph' in sys.modules\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
