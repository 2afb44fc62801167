"""What every agent is: a session, and four ways to answer in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import ClassVar

from handlers.threads import iterate_in_thread
from schemas.agent_message import AgentMessage, Usage
from schemas.agent_session import AgentSession
from schemas.errors import AgentInvocationError, ChatmillError
from schemas.stream_event import StreamEvent, ToolNote


class BaseAgentHandler(ABC):
    """Answers the messages of one session. One handler serves one attempt.

    `invoke` and `astream` must be written; with them alone the worker can use a framework. Write `stream`, or
    `astream_events` itself, to let readers see text and tool calls as they happen.

    All four raise AgentInvocationError on a timeout or any failure, and never return an empty result in its place; an
    agent that legitimately said nothing answers with one assistant message without text.
    """

    #: Whether it calls the job's model: then the provider's failures are counted, and its jobs wait while it fails.
    uses_model: ClassVar[bool] = True
    #: Whether it takes up `session.progress`, what earlier attempts have kept, and goes on from there; its `final` then
    #: holds the new messages only. A job whose handler cannot is not tried again once one of its tools has written.
    continues: ClassVar[bool] = False

    def __init__(self, session: AgentSession) -> None:
        self.session = session

    @abstractmethod
    def invoke(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> tuple[list[AgentMessage], Usage | None]:
        """Answer in one go: all messages of the answer, the last one the assistant's, and the tokens used."""

    def stream(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> Iterator[StreamEvent]:
        """Answer step by step; the last event is `final`. Optional."""
        raise NotImplementedError

    @abstractmethod
    def astream(self, user_message: str) -> AsyncGenerator[tuple[str, Usage | None], None]:
        """Answer as pieces of text, without blocking the event loop; usage is None until it is known."""

    async def astream_events(
        self, user_message: str, images: Sequence[str] | None = None, reply_to: str | None = None
    ) -> AsyncGenerator[StreamEvent, None]:
        """What the worker calls: the steps of the answer, exactly one `final` last.

        Built from `stream()`, else from `invoke()`, on a thread beside the event loop. A thread that does not come back
        within the session's `timeout_s` is left behind. Close the generator if you stop reading it early.
        """
        session = self.session
        steps = iterate_in_thread(lambda: self._steps(user_message, images, reply_to), timeout_s=session.timeout_s)
        async with aclosing(steps):
            try:
                async for event in steps:
                    yield event
                    if event.kind == "final":
                        return
            except ChatmillError:
                raise
            except TimeoutError as error:
                raise timed_out(session) from error
            except Exception as error:
                raise unexpected(error) from error
        raise AgentInvocationError("the agent ended without an answer", code="no_answer")

    @classmethod  # noqa: B027 - a hook that most handlers do not need
    def prepare(cls) -> None:
        """Load what the first answer would otherwise wait for; called before a worker takes work. May block."""

    @classmethod  # noqa: B027 - as above
    async def close_shared(cls) -> None:
        """Release what handlers of this class share on the running event loop; called when a worker ends."""

    def _steps(self, user_message: str, images: Sequence[str] | None, reply_to: str | None) -> Iterator[StreamEvent]:
        started = False
        try:
            for event in self.stream(user_message, images=images, reply_to=reply_to):
                started = True
                yield event
        except NotImplementedError:
            if started:
                raise
            yield from events_of(*self.invoke(user_message, images=images, reply_to=reply_to))


def events_of(response: list[AgentMessage], usage: Usage | None) -> Iterator[StreamEvent]:
    """The events of an answer that came in one go.

    Raises AgentInvocationError if it holds no message: an agent that failed must say so.
    """
    if not response:
        raise AgentInvocationError("the agent returned no message", code="no_answer")
    names: dict[str | None, str] = {}
    for message in response:
        if message.role == "assistant" and message.content:
            yield StreamEvent("text", text=message.content)
        for call in message.tool_calls or ():
            names[call["id"]] = call["name"]
            yield StreamEvent(
                "tool", tool=ToolNote(id=call["id"], name=call["name"], status="started", args=call["args"])
            )
        if message.role == "tool":
            call_id = message.tool_call_id or ""
            yield StreamEvent(
                "tool",
                tool=ToolNote(id=call_id, name=names.get(call_id, ""), status="finished", result=message.content),
            )
    yield StreamEvent("final", response=response, usage=usage)


def timed_out(session: AgentSession) -> AgentInvocationError:
    """The failure of an attempt that reached its time limit."""
    return AgentInvocationError(f"the agent did not answer within {session.timeout_s:g} s", code="timeout")


def unexpected(error: Exception) -> AgentInvocationError:
    """The failure of an agent that raised something of its own; the text of a foreign error may hold secrets."""
    return AgentInvocationError(f"the agent failed with {type(error).__name__}", code="agent_error")
