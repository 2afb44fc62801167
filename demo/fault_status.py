"""Faults that are over before a stream begins: error statuses, and requests that only some providers refuse."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable

from demo.errors import ProviderError
from demo.fault import Fault
from demo.response import Response
from demo.scene import Scene

#: status → (error type, error code)
_ERRORS: dict[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "permission_denied"),
    404: ("invalid_request_error", "model_not_found"),
    408: ("timeout_error", "request_timeout"),
    409: ("conflict_error", None),
    413: ("invalid_request_error", "request_too_large"),
    422: ("invalid_request_error", None),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    500: ("server_error", "internal_error"),
    502: ("server_error", "bad_gateway"),
    503: ("server_error", "service_unavailable"),
    504: ("server_error", "gateway_timeout"),
    529: ("overloaded_error", "overloaded"),
}
_WITH_RETRY_AFTER = {429, 503, 529}


def status(code: int) -> Callable[[Scene], Response]:
    """Play an error status with an OpenAI-shaped body; 429, 503 and 529 with Retry-After (`[retry-after=…]`)."""

    def play(scene: Scene) -> Response:
        wait = scene.controls.retry_after
        headers = {"retry-after": f"{1 if wait is None else wait:g}"} if code in _WITH_RETRY_AFTER else {}
        return Response(_error(code).body(), code, headers=headers)

    return play


def window(tokens: int) -> Callable[[Scene], Response]:
    """Play a model whose context window holds this many prompt tokens."""

    def play(scene: Scene) -> Response:
        return _too_long(scene) if scene.request.prompt_tokens > tokens else scene.answer()

    return play


def _error(code: int, message: str = "") -> ProviderError:
    kind, name = _ERRORS.get(code, ("server_error" if code >= 500 else "invalid_request_error", None))
    return ProviderError(message or f"The demo model plays status {code}.", status=code, kind=kind, code=name)


def _too_long(scene: Scene) -> Response:
    message = f"The messages, {scene.request.prompt_tokens} tokens, do not fit in the model's context window."
    error = ProviderError(message, param="messages", code="context_length_exceeded")
    return Response(error.body(), 400)


def _no_quota(_: Scene) -> Response:
    error = ProviderError("The account has no credit left.", kind="insufficient_quota", code="insufficient_quota")
    return Response(error.body(), 429)


def _prompt_blocked(_: Scene) -> Response:
    error = ProviderError("The prompt was blocked by a content filter.", param="prompt", code="content_filter")
    return Response(error.body(), 400)


def _bare_429(_: Scene) -> Response:
    return Response(_error(429).body(), 429)


def _dated_429(scene: Scene) -> Response:
    until = time.time() + (2.0 if scene.controls.retry_after is None else scene.controls.retry_after)
    return Response(_error(429).body(), 429, headers={"retry-after": email.utils.formatdate(until, usegmt=True)})


def _html_502(_: Scene) -> Response:
    return Response(b"<html><body><h1>502 Bad Gateway</h1></body></html>", 502, "text/html")


def _empty_500(_: Scene) -> Response:
    return Response(b"", 500)


def _detail_422(_: Scene) -> Response:
    return Response(b'{"detail":[{"loc":["body","messages"],"msg":"The demo model plays an odd error body."}]}', 422)


def _plain_error_400(_: Scene) -> Response:
    return Response(b'{"error":"The demo model plays an error that is a string."}', 400)


def _refuses_null_content(scene: Scene) -> Response:
    _refuse_assistant_content(scene, None)
    return scene.answer()


def _refuses_empty_content(scene: Scene) -> Response:
    _refuse_assistant_content(scene, "")
    return scene.answer()


def _refuse_assistant_content(scene: Scene, refused: str | None) -> None:
    for index, message in enumerate(scene.request.messages):
        if message["role"] == "assistant" and "content" in message and message["content"] == refused:
            raise ProviderError(
                f"messages[{index}].content: must not be {refused!r}", param=f"messages[{index}].content"
            )


def _by_status() -> tuple[Fault, ...]:
    return tuple(Fault(f"status-{code}", f"HTTP {code} ({error[0]})", status(code)) for code, error in _ERRORS.items())


FAULTS = (
    *_by_status(),
    Fault("context-length", "400 with code context_length_exceeded, whatever the length", _too_long),
    Fault("insufficient-quota", "429 that no waiting helps: code insufficient_quota", _no_quota),
    Fault("prompt-blocked", "400 with code content_filter: the prompt itself was blocked", _prompt_blocked),
    Fault("rate-limit-bare", "429 without Retry-After", _bare_429),
    Fault("rate-limit-date", "429 whose Retry-After is a date", _dated_429),
    Fault("html-502", "502 with an HTML page, as a proxy sends it", _html_502),
    Fault("empty-500", "500 without a body", _empty_500),
    Fault("detail-422", "422 with {detail: […]} in place of an error object", _detail_422),
    Fault("plain-error-400", "400 whose error is a string", _plain_error_400),
    Fault("refuses-null-content", "400 if an assistant message has content null, else fine", _refuses_null_content),
    Fault("refuses-empty-content", 'assistant content "" gets a 400, everything else is fine', _refuses_empty_content),
)
