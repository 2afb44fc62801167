"""What went wrong with a model call, as the one error the rest of chatmill knows.

A provider's own words are not passed on: they may quote keys, addresses or the conversation. Its codes are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx2
import openai
from langchain_core.exceptions import ContextOverflowError

from schemas.errors import AgentInvocationError

#: A code is shown only if it looks like one.
_CODE = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")
_TOO_LONG = re.compile(
    r"context.{0,3}(length|window)|maximum context|prompt is too long|input is too long|too many (input )?tokens"
    r"|tokens exceed|exceeds? the (maximum|configured) ",
    re.IGNORECASE,
)
_FILTERED_CODES = frozenset({"content_filter", "content_policy_violation", "moderation_blocked"})
_QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
#: What providers call an error in the middle of a stream, where no HTTP status says what it is.
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
}
#: Seconds; whoever asks to wait longer will be asked again.
_LONGEST_WAIT_S = 3600.0


def failure_of(error: Exception) -> AgentInvocationError:
    """The failure that an exception of a model call stands for."""
    match error:
        case openai.APITimeoutError() if isinstance(error.__cause__, httpx2.ConnectTimeout | httpx2.PoolTimeout):
            return AgentInvocationError("the model's server cannot be reached", code="connection")
        case openai.APITimeoutError() | httpx2.TimeoutException():
            return AgentInvocationError("the model's server has fallen silent", code="timeout")
        case openai.APIConnectionError():
            return AgentInvocationError("the model's server cannot be reached", code="connection")
        case openai.APIStatusError():
            return _failure_of_status(error.status_code, error, error.response.headers)
        case openai.APIError():
            return _failure_of_status(_status_of_body(error), error, {})
        case httpx2.HTTPError():
            return AgentInvocationError("the connection broke in the middle of the model's answer", code="truncated")
        case UnicodeEncodeError():
            return AgentInvocationError(
                "the key or the address of the model is not plain ASCII", code="authentication", retryable=False
            )
        case ValueError():  # not JSON, not UTF-8, or not the shape of a chunk
            return AgentInvocationError(
                "the model's server sent something that is not a chat completion", code="provider_error"
            )
    return AgentInvocationError(f"the agent failed with {type(error).__name__}", code="agent_error")


def is_filtered(error: Exception) -> bool:
    """Whether a provider refused the request for its content."""
    return isinstance(error, openai.APIError) and not _FILTERED_CODES.isdisjoint(_codes(error))


def _failure_of_status(status: int, error: openai.APIError, headers: Mapping[str, str]) -> AgentInvocationError:
    codes = _codes(error)
    shown = ", ".join([str(status), *codes]) if status else ", ".join(codes) or "no reason given"
    if not _QUOTA_CODES.isdisjoint(codes) or status == 402:
        return AgentInvocationError(
            f"the model provider's quota is used up ({shown})", code="insufficient_quota", retryable=False
        )
    if status == 429:
        return AgentInvocationError(
            f"the model provider asks to wait ({shown})",
            code="rate_limited",
            charged=False,
            retry_after=_retry_after(headers),
        )
    if _is_too_long(status, codes, error):
        return AgentInvocationError(
            f"the conversation is too long for the model ({shown})", code="too_long", retryable=False
        )
    if status in (401, 403):
        return AgentInvocationError(
            f"the model provider refuses the key ({shown})", code="authentication", retryable=False
        )
    if status == 408:
        return AgentInvocationError(f"the model's server took too long ({shown})", code="timeout")
    if 400 <= status < 500 and status not in (409, 425):
        return AgentInvocationError(
            f"the model provider refuses the request ({shown})", code="bad_request", retryable=False
        )
    return AgentInvocationError(
        f"the model's server failed ({shown})", code="provider_error", retry_after=_retry_after(headers)
    )


def _is_too_long(status: int, codes: list[str], error: openai.APIError) -> bool:
    if status == 413 or isinstance(error, ContextOverflowError) or "context_length_exceeded" in codes:
        return True
    return status in (0, 400, 422) and bool(_TOO_LONG.search(error.message))


def _codes(error: openai.APIError) -> list[str]:
    """The words of an error that are safe to show: its code, its type and the parameter it is about."""
    body = error.body if isinstance(error.body, dict) else {}
    nested = body.get("error")
    fields = nested if isinstance(nested, dict) else body
    found = [str(fields.get(name) or "") for name in ("code", "type", "param")]
    return list(dict.fromkeys(code for code in found if _CODE.fullmatch(code)))


def _status_of_body(error: openai.APIError) -> int:
    """The HTTP status that an error inside a stream stands for; 0 if nothing tells."""
    for code in _codes(error):
        if code.isdecimal() and 400 <= int(code) < 600:
            return int(code)
        if code in _STATUS_OF_TYPE:
            return _STATUS_OF_TYPE[code]
    return 0


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds a provider asks to wait, from `retry-after-ms` or `retry-after` (RFC 9110 §10.2.3)."""
    milliseconds, value = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds is not None:
            seconds = float(milliseconds) / 1000
        elif value is None:
            return None
        elif re.fullmatch(r"[0-9.]+", value.strip()):
            seconds = float(value)
        else:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return None
    return min(max(seconds, 0.0), _LONGEST_WAIT_S)
