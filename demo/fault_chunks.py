"""Faults of single chunks: odd shapes before or amid ordinary text, odd characters, odd finish reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import orjson

from demo.errors import ProviderError
from demo.fault import Fault
from demo.reply import Reply, words
from demo.response import Response
from demo.scene import Scene
from demo.script import calling, some_call
from demo.wire import DONE, Wire, frame

_THOUGHT = "The user wants something from a demo model, so a canned answer will do."

#: Characters of the one delta of `giant-delta`.
_GIANT = 1024 * 1024


def _first(make: Callable[[Wire], bytes]) -> Callable[[Scene], Response]:
    """An odd chunk before the whole ordinary answer."""
    return lambda scene: scene.stream(iter((frame(make(scene.wire)), *scene.frames())))


def _deltas(*texts: str) -> Callable[[Scene], Response]:
    """These content deltas as the text; `\\u` escapes in them go on the wire as they stand."""

    def play(scene: Scene) -> Response:
        before, after = scene.wire.chunk({"content": "\0"}).split(rb"\u0000")
        chunks = [frame(before + text.encode() + after) for text in texts]
        return scene.stream(iter((frame(scene.wire.opening()), *chunks, *map(frame, scene.ending()))))

    return play


def _says(**changes: Any) -> Callable[[Scene], Response]:
    """The ordinary answer with some of its fields replaced; also for requests that do not stream."""
    return lambda scene: scene.answer(replace(scene.reply, calls=(), **changes))


def _half_text(scene: Scene) -> str:
    pieces = words(scene.reply.text)
    return "".join(pieces[: max(1, len(pieces) // 2)])


def _filtered_after_text(scene: Scene) -> Response:
    return scene.answer(Reply(text=_half_text(scene), finish="content_filter"))


def _cut_by_length(scene: Scene) -> Response:
    return scene.answer(Reply(text=_half_text(scene), finish="length"))


def _usage_everywhere(scene: Scene) -> Response:
    def actions() -> Iterator[bytes]:
        for number, payload in enumerate(scene.payloads()):
            if payload == DONE:
                yield frame(payload)
            else:
                yield frame(orjson.dumps({**orjson.loads(payload), "usage": _usage(number)}))

    return scene.stream(actions())


def _usage(written: int) -> dict[str, int]:
    return {"prompt_tokens": 1, "completion_tokens": written, "total_tokens": 1 + written}


def _role_everywhere(scene: Scene) -> Response:
    deltas = [scene.wire.chunk({"role": "assistant", "content": piece}) for piece in words(scene.reply.text)]
    return scene.stream(map(frame, (*deltas, *scene.ending())))


def _finish_with_last_word(scene: Scene) -> Response:
    *most, last = words(scene.reply.text) or [""]
    deltas = [scene.wire.chunk({"content": piece}) for piece in most]
    return scene.stream(map(frame, (*deltas, scene.wire.chunk({"content": last}, "stop"), *scene.ending()[1:])))


def _empty_finish(scene: Scene) -> Response:
    deltas = [scene.wire.chunk({"content": piece}, "") for piece in words(scene.reply.text)]
    return scene.stream(map(frame, (*deltas, *scene.ending())))


def _unknown_finish(scene: Scene) -> Response:
    deltas = scene.wire.texts(scene.reply.text)
    return scene.stream(map(frame, (scene.wire.opening(), *deltas, scene.wire.chunk({}, "eos"), *scene.ending()[1:])))


def _unknown_fields(scene: Scene) -> Response:
    odd = {"content": "", "provider_specific": {"a": [1]}, "annotations": None}
    return scene.stream(iter((frame(scene.wire.chunk(odd)), *scene.frames())))


def _giant(scene: Scene) -> Response:
    text = "x" * _GIANT
    return scene.stream(map(frame, (scene.wire.opening(), scene.wire.chunk({"content": text}), *scene.ending())))


def _reasoning(scene: Scene) -> Response:
    return scene.answer(replace(scene.reply, reasoning=_THOUGHT))


def _reasoning_required(scene: Scene) -> Response:
    for index, message in enumerate(scene.request.turn):
        if message.get("tool_calls") and message.get("reasoning_content") != _THOUGHT:
            where = f"messages[{len(scene.request.messages) - len(scene.request.turn) + index}]"
            raise ProviderError(f"{where}.reasoning_content: must be passed back", param=f"{where}.reasoning_content")
    reply = scene.reply
    if scene.request.rounds == 0 and not reply.calls and scene.request.may_call:
        reply = calling(scene.request, [some_call(scene.request)])
    return scene.answer(replace(reply, reasoning=_THOUGHT))


FAULTS = (
    Fault(
        "no-delta", "a choice without delta, then all is well", _first(lambda w: w.event({"choices": [{"index": 0}]}))
    ),
    Fault("null-delta", "a choice whose delta is null, then all is well", _first(lambda w: w.chunk(None))),
    Fault(
        "null-content", "a delta whose content is null, then all is well", _first(lambda w: w.chunk({"content": None}))
    ),
    Fault("empty-choices", "a chunk with no choices, then all is well", _first(lambda w: w.event({"choices": []}))),
    Fault(
        "null-choices", "a chunk whose choices are null, then all is well", _first(lambda w: w.event({"choices": None}))
    ),
    Fault("no-choices", "a chunk without choices, then all is well", _first(lambda w: w.event({}))),
    Fault(
        "usage-first", "usage alone, then all is well", _first(lambda w: w.event({"choices": [], "usage": _usage(0)}))
    ),
    Fault("usage-everywhere", "a running usage on every chunk", _usage_everywhere),
    Fault("role-everywhere", "the role on every chunk", _role_everywhere),
    Fault("unknown-fields", "fields nobody knows in a delta, then all is well", _unknown_fields),
    Fault("finish-with-last-word", "finish_reason on the chunk of the last word", _finish_with_last_word),
    Fault("finish-empty-string", 'finish_reason "" on every chunk before the last', _empty_finish),
    Fault("finish-unknown", "finish_reason eos", _unknown_finish),
    Fault(
        "surrogate-split", "one emoji as two halves in two deltas: a\\ud83d, \\ude00b", _deltas("a\\ud83d", "\\ude00b")
    ),
    Fault("surrogate-lone", "half an emoji and no second half: a\\ud83d, b", _deltas("a\\ud83d", "b")),
    Fault("surrogate-last", "half an emoji as the last character: a, \\ud83d", _deltas("a", "\\ud83d")),
    Fault("nul", "a NUL character in the text: a\\u0000b", _deltas("a\\u0000b")),
    Fault("giant-delta", "one delta of a million characters", _giant),
    Fault("empty", "finish_reason stop and no text at all: the model legitimately says nothing", _says(text="")),
    Fault("length", "half of the text and finish_reason length", _cut_by_length),
    Fault("content-filter", "no text, finish_reason content_filter", _says(text="", finish="content_filter")),
    Fault("content-filter-after-text", "half of the text, finish_reason content_filter", _filtered_after_text),
    Fault(
        "refusal",
        "a refusal in place of content, finish_reason stop",
        _says(text="", refusal="I cannot help with that."),
    ),
    Fault("reasoning", "reasoning_content deltas before the answer", _reasoning),
    Fault(
        "reasoning-required",
        "reasoning and a tool call; 400 if the reasoning does not come back with the result",
        _reasoning_required,
    ),
)
