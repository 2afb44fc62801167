"""ChatJob: one chat request, as a producer enqueues it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from schemas.agent_message import ChatMessage, OpenAIMessage
from schemas.border_text import parse_json
from schemas.errors import InvalidRequest, MalformedRequest, NotYet, RequestError
from schemas.ids import canonical_id, new_id

#: 256 KiB of UTF-8: more than any person types, less than what would hurt a queue or a prompt.
MESSAGE_MAX_BYTES = 256 * 1024
#: 8 MiB for a whole request, history included.
REQUEST_MAX_BYTES = 8 * 1024 * 1024
METADATA_MAX_BYTES = 16 * 1024
DEFAULT_QUEUE = "chat"
DEFAULT_TENANT = "default"
#: An hour from acceptance, waiting included.
DEFAULT_DEADLINE_S = 3600.0

#: Fields of the contract whose feature is not there yet: refused when set, never ignored.
NOT_YET_FIELDS = (
    "images",
    "edit_of",
    "context",
    "tool_secrets",
    "response_format",
    "variant",
    "webhook_url",
)


def _canonical(value: str) -> str:
    try:
        return canonical_id(value)
    except ValueError:
        raise PydanticCustomError("uuid", "this is not a UUID") from None


def _message_size(value: str) -> str:
    if len(value.encode()) > MESSAGE_MAX_BYTES:
        raise PydanticCustomError("too_long", "longer than {limit} bytes", {"limit": MESSAGE_MAX_BYTES})
    return value


def _metadata_size(value: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(orjson.dumps(value))
    except TypeError as error:
        raise PydanticCustomError("unstorable", "not JSON: {reason}", {"reason": str(error)}) from None
    if size > METADATA_MAX_BYTES:
        raise PydanticCustomError("too_long", "larger than {limit} bytes", {"limit": METADATA_MAX_BYTES})
    return value


Id = Annotated[str, AfterValidator(_canonical)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$", max_length=128)]
TenantName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
#: A queue's name is part of Redis keys, and dramatiq wants it to begin with a letter; a dot is left to suffixes.
QueueName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", max_length=64)]
Metadata = Annotated[dict[str, Any], AfterValidator(_metadata_size)]
MessageText = Annotated[str, AfterValidator(_message_size)]
LanguageTag = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*$", max_length=35)]


class Parameters(BaseModel):
    """Sampling parameters, passed through to the model as they are."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    stop: list[str] | None = Field(default=None, max_length=4)

    @classmethod
    def from_stored(cls, data: dict[str, Any]) -> Parameters:
        """Read a stored row leniently: parameters that a newer version added are ignored."""
        return cls.model_validate({name: value for name, value in data.items() if name in cls.model_fields})

    def to_json(self) -> dict[str, Any]:
        """Only the parameters that are set."""
        return self.model_dump(exclude_none=True)


class ChatJob(BaseModel):
    """One chat request to be answered. Strict at the border: unknown fields are refused and sizes are bounded.

    Exactly one of `message` (in a session, or opening one), `messages` (a stateless job with its whole history inline)
    and `reply_to` (answer an existing user message again) says what is to be answered.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    #: Of this shape, for workers of another version.
    version: Literal[1] = 1
    #: The producer may choose it; it is then the idempotency key.
    job_id: Id = Field(default_factory=new_id)
    tenant: TenantName = DEFAULT_TENANT
    user_id: str | None = Field(default=None, min_length=1, max_length=128)

    session_id: Id | None = None
    #: The whole conversation, OpenAI-shaped, ending with the user's message.
    messages: list[OpenAIMessage] | None = Field(default=None, min_length=1, max_length=10_000)
    #: The user's text.
    message: MessageText | None = None
    #: An existing user message of the session to answer again.
    reply_to: Id | None = None

    agent_framework: Name | None = None
    model: Name | None = None
    #: Asked instead of `model` once an attempt has failed.
    fallback_model: Name | None = None
    system: MessageText | None = None
    parameters: Parameters = Parameters()
    #: Names of the tools the agent may use; None means all that are registered, an empty list means none.
    tools: list[Name] | None = Field(default=None, max_length=128)
    language: LanguageTag | None = None

    queue: QueueName = DEFAULT_QUEUE
    #: Higher runs first.
    priority: int = Field(default=0, ge=-100, le=100)
    #: Seconds from acceptance until the job is given up, waiting included.
    deadline_s: float = Field(default=DEFAULT_DEADLINE_S, gt=0, le=7 * 86_400)
    #: While the session still answers an earlier message: wait for one's turn, be refused with 409, or stop what is
    #: being answered and what waits.
    if_busy: Literal["enqueue", "reject", "interrupt"] = "enqueue"
    #: Kept with the job and given back, never interpreted.
    metadata: Metadata = Field(default_factory=dict)

    images: list[str] | None = None
    edit_of: Id | None = None
    context: str | None = None
    tool_secrets: dict[str, str] | None = None
    response_format: dict[str, Any] | None = None
    variant: str | None = None
    webhook_url: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in NOT_YET_FIELDS:
            if getattr(self, name) is not None:
                raise PydanticCustomError("not_yet", "{field} is not supported yet", {"field": name})
        self._check_question()
        return self

    def _check_question(self) -> None:
        given = [name for name in ("message", "messages", "reply_to") if getattr(self, name) is not None]
        if len(given) != 1:
            said = " and ".join(given) if given else "none of them"
            raise PydanticCustomError(
                "question",
                "give exactly one of message, messages and reply_to; given: {said}",
                {"said": said, "field": given[1] if given else "message"},
            )
        if self.message is not None and not self.message.strip():
            raise PydanticCustomError("empty", "the message is empty", {"field": "message"})
        if self.reply_to is not None and self.session_id is None:
            raise PydanticCustomError("question", "reply_to needs its session_id", {"field": "session_id"})
        if self.messages is not None:
            if self.session_id is not None:
                raise PydanticCustomError(
                    "question", "messages is for jobs without a session; send message", {"field": "messages"}
                )
            conversation_of(self.messages)

    @classmethod
    def from_request(cls, data: Any) -> ChatJob:
        """Validate what came in from outside.

        Raises InvalidRequest (or NotYet) that names the first wrong field and the reason.
        """
        if not isinstance(data, dict):
            raise InvalidRequest("a chat job is a JSON object")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise request_error(error) from None

    @classmethod
    def from_stored(cls, data: dict[str, Any]) -> ChatJob:
        """Read a stored row leniently: fields a newer version added are ignored."""
        known = {name: value for name, value in data.items() if name in cls.model_fields}
        known["version"] = 1
        parameters = known.get("parameters") or {}
        known["parameters"] = {name: value for name, value in parameters.items() if name in Parameters.model_fields}
        return cls.model_validate(known)

    def to_json(self) -> dict[str, Any]:
        """The job as it is stored and as a raw producer writes it; fields that are not set are left out."""
        return self.model_dump(exclude_none=True)


def conversation_of(messages: list[OpenAIMessage]) -> list[ChatMessage]:
    """The neutral form of OpenAI-shaped messages, checked as a strict provider would.

    `developer` becomes `system`. Raises PydanticCustomError with the field for: an empty or misplaced message, a
    conversation that does not end with the user, a tool message without its call, a call without its result.
    """
    neutral: list[ChatMessage] = []
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        field = f"messages.{index}"
        if open_calls and message.role != "tool":
            raise _at(field, f"the tool call {open_calls[0]} before it has no result")
        match message.role:
            case "system" | "developer":
                neutral.append(ChatMessage(role="system", content=message.text))
            case "user":
                if not message.text.strip():
                    raise _at(f"{field}.content", "the message is empty")
                if len(message.text.encode()) > MESSAGE_MAX_BYTES:
                    raise _at(f"{field}.content", f"longer than {MESSAGE_MAX_BYTES} bytes")
                neutral.append(ChatMessage(role="user", content=message.text))
            case "assistant":
                neutral.append(_assistant(message, field))
                open_calls = [call.id for call in message.tool_calls or ()]
                if len(set(open_calls)) != len(open_calls):
                    raise _at(f"{field}.tool_calls", "two calls have the same id")
            case "tool":
                if message.tool_call_id not in open_calls:
                    raise _at(f"{field}.tool_call_id", "there is no such call just before it")
                open_calls.remove(message.tool_call_id)
                neutral.append(ChatMessage(role="tool", content=message.text, tool_call_id=message.tool_call_id))
    if messages[-1].role != "user":
        raise _at("messages", "the last message must be the user's")
    return neutral


def _assistant(message: OpenAIMessage, field: str) -> ChatMessage:
    calls = []
    for index, call in enumerate(message.tool_calls or ()):
        try:
            args = parse_json(call.function.arguments or "{}")
        except MalformedRequest:
            args = None
        if not isinstance(args, dict):
            raise _at(f"{field}.tool_calls.{index}.function.arguments", "not a JSON object in a string")
        calls.append({"id": call.id, "name": call.function.name, "args": args})
    if not message.text and not calls:
        raise _at(f"{field}.content", "an assistant message needs content or tool_calls")
    return ChatMessage.model_validate({"role": "assistant", "content": message.text, "tool_calls": calls or None})


def _at(field: str, reason: str) -> PydanticCustomError:
    return PydanticCustomError("conversation", "{reason}", {"reason": reason, "field": field})


def request_error(error: ValidationError) -> RequestError:
    """The first fault of a pydantic validation as the RequestError a client is shown."""
    first = error.errors(include_url=False, include_input=False)[0]
    context = first.get("ctx") or {}
    field = context.get("field") or ".".join(str(part) for part in first["loc"]) or None
    if first["type"] == "not_yet":
        return NotYet(first["msg"], field=field)
    reason = "this field is unknown" if first["type"] == "extra_forbidden" else first["msg"]
    return InvalidRequest(reason, field=field)
