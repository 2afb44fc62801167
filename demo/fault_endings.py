"""Faults of the end: streams that break off, stop short, hold nothing, or hold an error."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from demo.errors import ProviderError
from demo.fault import Fault
from demo.response import JSON, Action, Response, Stop
from demo.scene import Scene
from demo.wire import DONE, frame

#: Seconds for the client to read what it was sent before the connection is reset: a reset discards what is unread.
_READ = 0.05

_OVERLOADED = ProviderError("The demo model plays an error in a stream.", kind="server_error", code="server_error")
_RATE_LIMIT = ProviderError("Too many requests.", kind="rate_limit_error", code="rate_limit_exceeded")
_BAD_REQUEST = ProviderError("The messages are invalid.", param="messages", code="invalid_messages")


def _after_half(*ending: Action) -> Callable[[Scene], Response]:
    return lambda scene: scene.stream(iter((*scene.half(), *ending)))


def _only(*events: bytes) -> Callable[[Scene], Response]:
    return lambda scene: scene.stream(iter(events))


def _cut_in(cut: Callable[[bytes], int], *ending: Action) -> Callable[[Scene], Response]:
    """Half of the text, then the first bytes of one more event."""

    def play(scene: Scene) -> Response:
        event = frame(scene.wire.text(" and a word with an é in it"))
        return scene.stream(iter((*scene.half(), event[: cut(event)], *ending)))

    return play


def _middle(event: bytes) -> int:
    return len(event) // 2


def _in_character(event: bytes) -> int:
    return event.index("é".encode()) + 1


def _error_event(error: ProviderError) -> bytes:
    return frame(error.body())


def _cut(scene: Scene) -> Response:
    if scene.request.stream:
        return scene.stream(iter((*scene.half(), _READ, Stop.RESET)))
    body = scene.completion()
    return Response(iter((body[: len(body) // 2], _READ, Stop.RESET)), content_type=JSON)


def _done_without_finish(scene: Scene) -> Response:
    return scene.stream(iter([event for event in scene.frames() if b'"finish_reason":"' not in event]))


def _finish_without_done(scene: Scene) -> Response:
    return scene.stream(iter(scene.frames()[:-1]))


def _text_without_end(scene: Scene) -> Response:
    return scene.stream(iter(scene.frames()[: -len(scene.ending())]))


def _html(_: Scene) -> Response:
    return Response(b"<html><body><h1>It works!</h1></body></html>", content_type="text/html")


def _json_not_stream(scene: Scene) -> Response:
    return Response(scene.completion(), content_type=JSON)


def _error_in_body(_: Scene) -> Response:
    return Response(_OVERLOADED.body(), content_type=JSON)


FAULTS = (
    Fault("reset", "the connection is reset before any answer", lambda _: Response(iter((Stop.RESET,)))),
    Fault("cut", "half of the answer (or of the JSON), then the connection is reset", _cut),
    Fault(
        "cut-close",
        "half of the answer, then the connection is closed within the chunked body",
        _after_half(Stop.CLOSE),
    ),
    Fault("cut-in-event", "half of the answer and half an event, then a reset", _cut_in(_middle, _READ, Stop.RESET)),
    Fault("eof", "half of the answer, then a clean end: no finish_reason, no [DONE]", _after_half()),
    Fault("eof-whole-text", "all of the text, then a clean end: no finish_reason, no [DONE]", _text_without_end),
    Fault("eof-in-event", "half of the answer and half an event, then a clean end", _cut_in(_middle)),
    Fault("eof-in-character", "a clean end within a character of two bytes", _cut_in(_in_character)),
    Fault("done-no-finish", "the whole answer and [DONE], but no finish_reason", _done_without_finish),
    Fault("finish-no-done", "the whole answer and its finish_reason, but no [DONE]", _finish_without_done),
    Fault("zero-bytes", "200 and an empty stream", _only(b"")),
    Fault("only-done", "200 and nothing but [DONE]", _only(frame(DONE))),
    Fault("only-role", "the role, then a clean end", lambda scene: scene.stream(iter(scene.frames()[:1]))),
    Fault("html", "200 and an HTML page", _html),
    Fault("json-not-stream", "200 and one JSON object although a stream was asked for", _json_not_stream),
    Fault("json-error-200", "200 and an error object that is no stream", _error_in_body),
    Fault(
        "not-json",
        "half of the answer, then an event that is no JSON, then [DONE]",
        _after_half(b"data: {oops\n\n", frame(DONE)),
    ),
    Fault("error-only", "200, an error object in the stream, nothing else", _only(_error_event(_OVERLOADED))),
    Fault("error-after-text", "half of the answer, then an error object", _after_half(_error_event(_OVERLOADED))),
    Fault(
        "error-then-done",
        "half of the answer, an error object, [DONE]",
        _after_half(_error_event(_OVERLOADED), frame(DONE)),
    ),
    Fault(
        "error-string",
        "half of the answer, then an error that is a string",
        _after_half(frame(orjson.dumps({"error": "The model is gone."}))),
    ),
    Fault(
        "error-event",
        "half of the answer, then an event named error",
        _after_half(b"event: error\n" + _error_event(_OVERLOADED)),
    ),
    Fault(
        "error-rate-limit", "200, then an error object with code rate_limit_exceeded", _only(_error_event(_RATE_LIMIT))
    ),
    Fault("error-bad-request", "200, then an error object that no retry helps", _only(_error_event(_BAD_REQUEST))),
)
