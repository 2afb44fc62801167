"""What an agent's graph carries from step to step."""

from __future__ import annotations

from typing import Annotated, NotRequired

from langchain_core.messages import AnyMessage
from langgraph.graph.message import add_messages
from langgraph.managed import RemainingSteps
from typing_extensions import TypedDict

from schemas.agent_message import Usage, add_usage
from schemas.stream_event import Outcome


class AgentState(TypedDict):
    """The conversation so far, and what the answer being made has cost and met."""

    messages: Annotated[list[AnyMessage], add_messages]
    #: Tokens of all model calls of this answer; None if the provider does not say.
    usage: NotRequired[Annotated[Usage | None, add_usage]]
    #: Tokens of the last model call.
    reply_usage: NotRequired[Usage | None]
    #: How the answer ended, once it has.
    outcome: NotRequired[Outcome]
    #: Calls of the last message that must not run, by id, with the reason the model is told.
    invalid_calls: NotRequired[dict[str, str]]
    #: Rounds of this answer with a call that could not be read, or with a tool that does not exist.
    invalid_rounds: NotRequired[int]
    unknown_rounds: NotRequired[int]
    #: Kept by LangGraph: graph steps left after this one.
    remaining_steps: RemainingSteps
