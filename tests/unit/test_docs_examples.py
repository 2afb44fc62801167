"""What the documentation shows is true: its examples run, and its tables name what there is."""

from __future__ import annotations

import dataclasses
import http.server
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gateway.app import api_operations
from gateway.services import Services
from handlers.base import BaseAgentHandler
from handlers.builtin_tools import BUILT_IN_TOOLS
from handlers.factory import HandlerFactory
from handlers.tool_runner import ToolRunner
from handlers.tools import ToolRegistry, build_registry
from schemas.agent_message import ChatMessage, joined_text
from schemas.agent_session import AgentSession
from schemas.chat_job import NOT_YET_FIELDS, ChatJob, Parameters
from schemas.errors import RequestError
from schemas.fold import Fold
from schemas.job_event import EventId, JobEvent
from schemas.progress import OpenCall
from schemas.settings import Settings, load_settings
from schemas.tool import Tool
from scripts import settings_reference
from tests.documents import CHECKOUT, block, blocks, names, read, table

EVENTS = "docs/events.md"
KINDS = {model.model_fields["kind"].default: model for model in get_args(get_args(JobEvent)[0])}


def run(code: str) -> dict[str, Any]:
    """What a block of Python defines."""
    defined: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "<documentation>", "exec"), defined)
    return defined


def test_the_settings_reference_is_up_to_date() -> None:
    assert settings_reference.REFERENCE.read_text(encoding="utf-8") == settings_reference.reference()


def test_every_setting_is_in_the_reference() -> None:
    listed = [name for names in settings_reference.sections().values() for name in names]
    assert listed == list(Settings.model_fields)


def test_every_example_of_an_event_is_one_and_no_kind_lacks_one() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(JobEvent)
    lines = [line for code in blocks(EVENTS, "events") for line in code.splitlines()]
    events = [adapter.validate_json(line, extra="forbid") for line in lines]
    assert {event.kind for event in events} == set(KINDS)
    assert [orjson.dumps(orjson.loads(line)).decode() for line in lines] == lines


def test_the_table_of_kinds_names_every_kind_with_its_fields() -> None:
    common = {"kind", "job_id", "at"}
    documented = {names(kind)[0]: names(fields) for kind, _, fields, _ in table(EVENTS, "Kinds")}
    assert documented == {
        kind: [name for name in model.model_fields if name not in common] for kind, model in KINDS.items()
    }


def test_the_table_of_failures_names_every_code_there_is() -> None:
    documented = {code for row in table(EVENTS, "Why jobs fail") for code in names(row[0])}
    folders = ("graph", "handlers", "storage", "workers")
    sources = [path for folder in folders for path in (CHECKOUT / folder).rglob("*.py")]
    used = {code for path in sources for code in re.findall(r'\bcode="(\w+)"', path.read_text(encoding="utf-8"))}
    assert used <= documented
    errors = (CHECKOUT / "schemas" / "errors.py").read_text(encoding="utf-8")
    assert documented <= used | set(re.findall(r'\bcode(?:: str)? ?= ?"(\w+)"', errors))


TEXTS = st.text(max_size=5)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["assistant", "tool"]), "content": TEXTS}), max_size=3
)
ANY_EVENT = st.one_of(
    st.fixed_dictionaries({"kind": st.sampled_from(["queued", "started", "retrying", "requeued", "failed", "new"])}),
    st.fixed_dictionaries({"kind": st.just("text"), "text": TEXTS}),
    st.fixed_dictionaries({"kind": st.just("tool"), "tool": st.just({"id": "1", "name": "t", "status": "started"})}),
    st.fixed_dictionaries({"kind": st.just("snapshot"), "text": TEXTS, "tools": st.just([])}),
    st.fixed_dictionaries({"kind": st.sampled_from(["final", "cancelled"]), "response": MESSAGES}),
)
IDS = st.builds(EventId, st.integers(0, 3), st.integers(1, 12))


@given(st.lists(st.tuples(IDS, ANY_EVENT), max_size=15))
def test_the_example_folds_any_events_as_chatmill_does(events: list[tuple[EventId, dict[str, Any]]]) -> None:
    example, ours = FOLD["Answer"](), Fold()
    for event_id, event in events:
        example.take(str(event_id), event)
        ours.apply(event_id, event)
        assert (example.text, example.ended) == (ours.text, ours.terminal is not None)


FOLD = run(block(EVENTS, "fold"))


class BrokenGateway(http.server.BaseHTTPRequestHandler):
    """Sends events after the cursor, breaks off in the middle of a frame twice, then says that the job has ended."""

    protocol_version = "HTTP/1.1"
    cursors: ClassVar[list[str | None]] = []
    ANSWERS: ClassVar[list[bytes]] = [
        b': following\n\nid: 0-1\nevent: queued\ndata: {"kind":"queued"}\n\nid: 1-1\nevent: started\ndata: {"ki',
        b': following\n\nid: 1-1\nevent: started\ndata: {"kind":"started"}\n\n: still here\n\nid: 1-2\n',
        b': following\n\nid: 2-1\nevent: final\ndata: {"kind":"final"}\n\n',
    ]

    def do_GET(self) -> None:
        self.cursors.append(self.headers["Last-Event-ID"])
        if len(self.cursors) > len(self.ANSWERS):
            self.send_response(204 if self.path == "/job" else 404)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(self.ANSWERS[len(self.cursors) - 1])
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name for it
        pass


@contextmanager
def broken_gateway() -> Iterator[str]:
    BrokenGateway.cursors.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), BrokenGateway) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_example_follows_a_job_over_connections_that_break() -> None:
    with broken_gateway() as url:
        events = list(run(block(EVENTS, "follow"))["follow"](f"{url}/job"))
    assert events == [("0-1", {"kind": "queued"}), ("1-1", {"kind": "started"}), ("2-1", {"kind": "final"})]
    assert BrokenGateway.cursors == [None, "0-1", "1-1", "2-1"]


def test_the_example_gives_up_on_a_job_that_does_not_exist() -> None:
    with broken_gateway() as url, pytest.raises(OSError, match="404"):
        list(run(block(EVENTS, "follow"))["follow"](f"{url}/none"))


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of docs/tools.md: chatmill.toml and the modules beside it."""
    tools = "docs/tools.md"
    (tmp_path / "my_tools.py").write_text(block(tools, "tool"))
    (tmp_path / "my_agents.py").write_text(block(tools, "framework") + block(tools, "async-framework"))
    (tmp_path / "chatmill.toml").write_text(
        block(tools, "tool-settings")
        + block(tools, "framework-settings")
        + '\n[frameworks.count]\nhandler = "my_agents:CountingHandler"\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("my_tools", "my_agents"):
        sys.modules.pop(name, None)


async def test_the_tool_of_the_documentation_runs(own_folder: Path) -> None:
    registry = build_registry(load_settings(own_folder / "chatmill.toml").tools)
    session = AgentSession(session_id="", tools=registry.select(["search_orders"]))
    run_tool = ToolRunner(session).run
    found = await run_tool({"id": "1", "name": "search_orders", "args": {"query": "a-17"}})
    assert (found.text, found.is_error) == ('{"A-17":"shipped on Monday"}', False)
    missed = await run_tool({"id": "2", "name": "search_orders", "args": {"query": "B-1"}})
    assert (missed.text, missed.is_error) == ("ValueError: no order matches 'B-1'", True)


async def test_the_tool_with_a_key_of_the_documentation_sends_once() -> None:
    example = run(block("docs/tools.md", "key"))
    runner = ToolRunner(AgentSession(session_id="", tools=ToolRegistry([example["send_mail"]]).select()))
    args = {"to": "a@example.com", "text": "hi"}
    sent = await runner.run({"id": "1", "name": "send_mail", "args": args})
    (key,) = example["SENT"]
    assert await runner.repeat(OpenCall(key, "1", "send_mail", args)) == sent
    assert len(example["SENT"]) == 1


async def test_the_frameworks_of_the_documentation_answer(own_folder: Path) -> None:
    frameworks = load_settings(own_folder / "chatmill.toml").frameworks
    factory = HandlerFactory({name: entry.handler for name, entry in frameworks.items()})

    async def two_messages(reply_to: str | None = None) -> list[ChatMessage]:
        return [ChatMessage(role="user", content="one"), ChatMessage(role="assistant", content="1")]

    for name, answer in (("shout", "HELLO THERE"), ("count", "This is question number 2.")):
        session = AgentSession(session_id="", agent_framework=name, read_history=two_messages)
        handler = factory.handler_for(session)
        assert handler is not None
        *shown, final = [event async for event in handler.astream_events("hello there")]
        assert final.response is not None
        assert "".join(event.text for event in shown) == joined_text(final.response) == answer


def test_the_tables_of_tools_are_complete() -> None:
    documented = {
        names(name)[0]: effect for name, effect, _ in table("docs/tools.md", "The tools that ship with chatmill")
    }
    assert documented == {tool.name: tool.effect for tool in BUILT_IN_TOOLS}
    fields = [names(row[0])[0] for row in table("docs/tools.md", "What a tool may do")]
    assert fields == [field.name for field in dataclasses.fields(Tool)]


def test_the_table_of_handlers_names_every_method() -> None:
    documented = {names(row[0])[0].partition("(")[0] for row in table("docs/tools.md", "The contract of a handler")}
    assert documented == {name for name in vars(BaseAgentHandler) if not name.startswith("_")}


def test_the_table_of_a_chat_job_has_every_field_with_its_default() -> None:
    rows = table("docs/wire.md", "ChatJob")
    assert [names(row[0])[0] for row in rows] == list(ChatJob.model_fields)
    assert [names(row[0])[0] for row in rows if row[-1] == "*not yet*"] == list(NOT_YET_FIELDS)
    defaults = {names(row[0])[0]: names(row[2])[0] for row in rows if names(row[2])}
    job = ChatJob(message="hi")
    shown = {
        name: value for name, value in job.model_dump(exclude_none=True).items() if name not in ("job_id", "message")
    }
    assert defaults == {
        name: value if isinstance(value, str) else f"{value:g}" if isinstance(value, (int, float)) else "{}"
        for name, value in shown.items()
    }


def test_the_parameters_in_the_table_are_those_there_are() -> None:
    (meaning,) = [row[-1] for row in table("docs/wire.md", "ChatJob") if row[0] == "`parameters`"]
    assert names(meaning) == list(Parameters.model_fields)


def test_every_operation_of_the_api_is_described_with_its_parameters() -> None:
    services = cast("Services", SimpleNamespace(settings=load_settings()))
    text = read("docs/http.md")
    sections = dict(re.findall(r"^### `(\w+ \S+)`\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE))
    operations = {f"{one.method} {one.path}": one for one in api_operations(services)}
    assert set(sections) == set(operations)
    for name, operation in operations.items():
        for parameter in operation.parameters:
            assert parameter.where == "path" or f"`{parameter.name}`" in sections[name], f"{name}: {parameter.name}"


def test_every_problem_of_the_api_is_described() -> None:
    documented = {names(code)[0]: int(status) for status, code, _ in table("docs/http.md", "Problems")}
    kinds = [RequestError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind.code: kind.status for kind in kinds if kind is not RequestError}.items() <= documented.items()
