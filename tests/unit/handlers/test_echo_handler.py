"""The echo repeats the message by every way of asking."""

from __future__ import annotations

import pytest

from handlers.echo_handler import EchoHandler
from schemas.agent_message import joined_text
from schemas.agent_session import AgentSession

TEXTS = ["hello there", " leading and  double ", "one", "line\nbreak\n", "\n"]


@pytest.fixture
def echo() -> EchoHandler:
    return EchoHandler(AgentSession(session_id="s", agent_framework="echo"))


@pytest.mark.parametrize("text", TEXTS)
async def test_the_message_comes_back_unchanged(echo: EchoHandler, text: str) -> None:
    events = [event async for event in echo.astream_events(text)]

    assert "".join(event.text for event in events) == text
    assert joined_text(events[-1].response or []) == text


@pytest.mark.parametrize("text", TEXTS)
async def test_streaming_gives_the_same_text_word_by_word(echo: EchoHandler, text: str) -> None:
    pieces = [piece async for piece in echo.astream(text)]

    assert "".join(piece for piece, _ in pieces) == text
    assert pieces[-1][1] == echo.invoke(text)[1]
