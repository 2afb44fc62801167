"""A session as clients make, change and read it over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from schemas.agent_message import ChatMessage, MessageRole, OpenAIMessage, ToolCall
from schemas.chat_job import (
    Id,
    LanguageTag,
    MessageText,
    Metadata,
    Name,
    Parameters,
    conversation_of,
    request_error,
)
from schemas.errors import InvalidRequest
from schemas.job_event import rfc3339


class _Settings(BaseModel):
    """What can be set when a session is made and changed later. Strict: unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    agent_framework: Name | None = Field(
        default=None, description="Who answers; null is the default one, `none` only stores messages."
    )
    model: Name | None = Field(default=None, description="Model of jobs that name none; null is the default one.")
    system: MessageText | None = Field(default=None, description="System prompt; null is the default one.")
    language: LanguageTag | None = None
    tools: list[Name] | None = Field(
        default=None, max_length=128, description="Tools the agent may use; null means all, an empty list none."
    )
    parameters: Parameters = Parameters()
    user_id: str | None = Field(default=None, min_length=1, max_length=128)
    metadata: Metadata = Field(default_factory=dict, description="Given back as it is, never interpreted.")

    @classmethod
    def from_request(cls, data: Any) -> Self:
        """Validate what came in from outside. Raises InvalidRequest that names the first wrong field."""
        if not isinstance(data, dict):
            raise InvalidRequest("the body is a JSON object")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise request_error(error) from None


class SessionRequest(_Settings):
    """A session about to be made, perhaps with a conversation that was held elsewhere."""

    messages: list[OpenAIMessage] = Field(
        default_factory=list, max_length=10_000, description="The conversation so far, OpenAI-shaped, oldest first."
    )

    @model_validator(mode="after")
    def _check_history(self) -> Self:
        history_of(self.messages)
        return self


class SessionChange(_Settings):
    """Changes to a session: what is left out stays as it is."""

    active_leaf: Id | None = Field(
        default=None, description="The message to talk on from: the end of the active branch. Null starts anew."
    )

    def columns(self) -> dict[str, Any]:
        """The columns to set and their values."""
        changes = {name: getattr(self, name) for name in self.model_fields_set}
        if "parameters" in changes:
            changes["parameters"] = self.parameters.to_json()
        return changes


class MessageView(BaseModel):
    """A message of a session: a node of the tree that `parent_id` spans."""

    model_config = ConfigDict(frozen=True)

    id: str
    parent_id: str | None
    role: MessageRole
    content: str
    tool_calls: list[ToolCall] | None
    tool_call_id: str | None
    status: str = Field(description="`complete`, or `cancelled` for the partial text of a stopped answer.")
    placed: bool = Field(description="False while its job has not begun: only then it gets its parent.")
    job_id: str | None
    created_at: str

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The view of a row of `storage.sessions.get_messages`."""
        fields = {name: row[name] for name in cls.model_fields if name != "created_at"}
        return cls(**fields, created_at=rfc3339(row["created_at"]))


class SessionSummary(BaseModel):
    """A session in a list."""

    model_config = ConfigDict(frozen=True)

    id: str
    agent_framework: str
    model: str | None
    language: str | None
    tools: list[str] | None
    parameters: dict[str, Any]
    user_id: str | None
    metadata: dict[str, Any]
    active_leaf: str | None = Field(description="The last message of the active branch.")
    created_at: str
    updated_at: str

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The view of a row of `storage.sessions`."""
        return cls(**cls._fields_of(row))

    @classmethod
    def _fields_of(cls, row: Mapping[str, Any]) -> dict[str, Any]:
        fields = {name: row[name] for name in cls.model_fields if name in row}
        return {**fields, "created_at": rfc3339(row["created_at"]), "updated_at": rfc3339(row["updated_at"])}


class SessionView(SessionSummary):
    """A session's settings."""

    system: str | None


class SessionDetail(SessionView):
    """A session with every message of every branch, in the order they were made."""

    messages: list[MessageView]
    active_branch: list[str] = Field(description="Ids of the messages that are being talked on, oldest first.")

    @classmethod
    def of_rows(cls, row: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> Self:
        """The view of a session's row and its messages' rows."""
        parents = {message["id"]: message["parent_id"] for message in messages}
        return cls(
            **cls._fields_of(row),
            messages=[MessageView.of_row(message) for message in _in_order(messages, parents)],
            active_branch=_branch(row["active_leaf"], parents),
        )


class SessionPage(BaseModel):
    """Sessions, the newest first."""

    model_config = ConfigDict(frozen=True)

    data: list[SessionSummary]
    next: str | None = Field(description="The `before` of the next page; null at the end.")


def history_of(messages: Sequence[OpenAIMessage]) -> list[ChatMessage]:
    """The neutral form of a conversation that may end with any role: well formed is what a question could follow.

    Raises PydanticCustomError with the field.
    """
    if not messages:
        return []
    question = OpenAIMessage(role="user", content="?")
    try:
        return conversation_of([*messages, question])[:-1]
    except PydanticCustomError as error:
        context = error.context or {}
        if context.get("field") != f"messages.{len(messages)}":
            raise
        # The last message asks for a tool whose result does not follow.
        raise PydanticCustomError(
            "conversation", "{reason}", {**context, "field": f"messages.{len(messages) - 1}"}
        ) from None


def _in_order(messages: Sequence[Mapping[str, Any]], parents: Mapping[str, str | None]) -> list[Mapping[str, Any]]:
    """The messages by the time they were made; those made at once, parents first."""
    depths: dict[str | None, int] = {None: 0}
    for message in messages:
        path: list[str] = []
        node: str | None = message["id"]
        while node is not None and node not in depths and node in parents:
            path.append(node)
            depths[node] = 0  # a loop in the data must end
            node = parents[node]
        for above, name in enumerate(reversed(path), start=1):
            depths[name] = depths.get(node, 0) + above
    return sorted(messages, key=lambda message: (message["created_at"], depths[message["id"]]))


def _branch(leaf: str | None, parents: Mapping[str, str | None]) -> list[str]:
    """The ids from the root down to `leaf`."""
    branch: list[str] = []
    seen: set[str] = set()
    while leaf is not None and leaf in parents and leaf not in seen:
        seen.add(leaf)
        branch.append(leaf)
        leaf = parents[leaf]
    return branch[::-1]
