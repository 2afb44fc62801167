"""Every error chatmill raises on purpose, but for those by which `chatmill up` ends (in cli/).

ChatmillError
├── RequestError                 refused at the border, before anything is accepted
│   ├── InvalidRequest           422  a field is wrong
│   ├── NotYet                   422  the field is known, its feature is not there yet
│   ├── MalformedRequest         400  not JSON at all
│   ├── RequestTooLarge          413
│   ├── NotFound                 404  missing, or another tenant's: the two look the same
│   ├── Conflict                 409
│   │   └── SessionBusy          409  it is still answering, and the job was not to wait
│   └── QueueUnavailable         503  Redis is needed for it, and does not answer
├── AgentInvocationError         the agent did not answer; `code`, `retryable` and `charged` decide what follows
├── StreamMismatch               an agent's `final` differs from what it streamed (a fault of the handler)
├── TransitionRefused            the guarded UPDATE met no row: somebody holds a newer epoch
├── StorageUnavailable           the database did not answer in time; the call may be repeated
└── ConfigurationError           a setting or `chatmill.toml` is wrong; said at start, in one line
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class JobError(BaseModel):
    """Why an attempt or a job failed, as clients and dead letters show it."""

    model_config = ConfigDict(frozen=True)

    #: Stable and short, for programs: `timeout`, `provider_error`, `too_long`, …
    code: str
    #: A sentence that is safe to show to whoever sent the request.
    message: str
    #: Whether trying the same request again may succeed.
    retryable: bool


class ChatmillError(Exception):
    """The root of every error chatmill raises on purpose."""


class RequestError(ChatmillError):
    """A request that is refused at the border, before anything is accepted.

    `status` is the HTTP status, `code` a stable word for programs, `field` a dotted path into the request or None.
    """

    status = 400
    code = "bad_request"

    def __init__(self, reason: str, *, field: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.field = field

    def to_job_error(self) -> JobError:
        """The same refusal, for a raw producer's job that has to be dead-lettered instead."""
        return JobError(
            code=self.code, message=f"{self.field}: {self.reason}" if self.field else self.reason, retryable=False
        )


class MalformedRequest(RequestError):
    """The request is not the JSON it should be."""

    code = "malformed"


class InvalidRequest(RequestError):
    """A field of the request is missing, unknown, too large or of the wrong type."""

    status = 422
    code = "invalid"


class NotYet(InvalidRequest):
    """The field is part of the contract, but its feature is not there yet; it is refused, never ignored."""

    code = "not_yet"


class RequestTooLarge(RequestError):
    """The request is larger than chatmill takes."""

    status = 413
    code = "too_large"


class NotFound(RequestError):
    """There is no such thing, or it belongs to another tenant."""

    status = 404
    code = "not_found"


class Conflict(RequestError):
    """The request is well formed but the state of things forbids it."""

    status = 409
    code = "conflict"


class SessionBusy(Conflict):
    """The session is still answering an earlier message, and the job says `if_busy: reject`."""

    code = "busy"

    def __init__(self, reason: str) -> None:
        super().__init__(reason, field="if_busy")


class QueueUnavailable(RequestError):
    """Redis does not answer, and the request is about a message on a queue."""

    status = 503
    code = "queue_unavailable"

    def __init__(self) -> None:
        super().__init__("Redis does not answer, so nothing was put on the queue; send the request again")


class AgentInvocationError(ChatmillError):
    """The agent did not answer.

    `code` is stable and short. `retryable`: may the same request succeed later. `charged`: does the failure use up the
    job's single retry (a provider's 429 does not). `retry_after` is in seconds, as the provider asked, or None.
    The message is shown to whoever sent the request: it must carry no keys, URLs with credentials or message text.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "agent_error",
        retryable: bool = True,
        charged: bool = True,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.charged = charged
        self.retry_after = retry_after

    def to_job_error(self) -> JobError:
        return JobError(code=self.code, message=str(self), retryable=self.retryable)


class StreamMismatch(AgentInvocationError):
    """The handler's final answer differs from the text it streamed."""

    def __init__(self, message: str = "the agent's final answer differs from what it streamed") -> None:
        super().__init__(message, code="stream_mismatch")


class TransitionRefused(ChatmillError):
    """The job has moved on: its epoch or state is not the one this transition was made for."""


class StorageUnavailable(ChatmillError):
    """The database did not answer in time; nothing is known about the last write."""


class ConfigurationError(ChatmillError):
    """A setting is wrong; the message names it and says what to do."""
