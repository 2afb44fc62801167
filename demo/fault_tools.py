"""Faults of tool calls. They play when a turn begins; once results have come back, the model answers as usual.

The calls are those the text asks for, else the first tool that is offered, filled with the user's text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import orjson

from demo.fault import Fault
from demo.reply import Call, Finish, Reply
from demo.response import Response
from demo.scene import Scene
from demo.script import calling, some_call
from demo.wire import frame

_UNKNOWN = ("no_such_tool", "{}")

Chunks = Callable[[Scene, Call, Call], Iterable[bytes]]


def _reply(scene: Scene, count: int) -> Reply:
    """A reply with this many calls, of the scripted ones if there are enough."""
    asked = [(call.name, call.arguments) for call in scene.reply.calls]
    spare = some_call(scene.request)
    return calling(scene.request, [*asked, spare, spare][:count])


def _first_round(play: Callable[[Scene], Response]) -> Callable[[Scene], Response]:
    return lambda scene: scene.answer() if scene.request.rounds else play(scene)


def _raw(chunks: Chunks, finish: Finish = "tool_calls") -> Callable[[Scene], Response]:
    """Tool-call chunks made by hand from two calls, between the role and the finish reason."""

    def play(scene: Scene) -> Response:
        reply = replace(_reply(scene, 2), finish=finish)
        payloads = [scene.wire.opening(with_text=False), *chunks(scene, *reply.calls), *scene.ending(reply)]
        return scene.stream(map(frame, payloads))

    return _first_round(play)


def _whole(
    change: Callable[[Call], Call], finish: Finish = "tool_calls", count: int = 1
) -> Callable[[Scene], Response]:
    """Well-formed chunks whose calls, or whose finish reason, are wrong; also for requests that do not stream."""

    def play(scene: Scene) -> Response:
        reply = _reply(scene, count)
        return scene.answer(replace(reply, calls=tuple(map(change, reply.calls)), finish=finish))

    return _first_round(play)


def _same(call: Call) -> Call:
    return call


def _cut_arguments(call: Call) -> Call:
    return replace(call, arguments=call.arguments[: max(1, len(call.arguments) * 2 // 3)].rstrip("}"))


def _halves(call: Call) -> tuple[str, str]:
    middle = len(call.arguments) // 2
    return call.arguments[:middle], call.arguments[middle:]


def _complete(scene: Scene, index: int | None, call: Call, call_id: str | None) -> bytes:
    """One whole call in one chunk; without an id if that is None."""
    fields = {} if call_id is None else {"id": call_id}
    return scene.wire.tool_delta(index, {"name": call.name, "arguments": call.arguments}, **fields, type="function")


def _no_index(scene: Scene, one: Call, two: Call) -> Iterable[bytes]:
    return [_complete(scene, None, call, call.id) for call in (one, two)]


def _no_index_split(scene: Scene, one: Call, two: Call) -> Iterable[bytes]:
    for call in (one, two):
        head, tail = _halves(call)
        yield scene.wire.tool_delta(None, {"name": call.name, "arguments": head}, id=call.id, type="function")
        yield scene.wire.tool_delta(None, {"arguments": tail})


def _no_id(scene: Scene, one: Call, _: Call) -> Iterable[bytes]:
    return [_complete(scene, 0, one, None)]


def _null_arguments(scene: Scene, one: Call, _: Call) -> Iterable[bytes]:
    yield scene.wire.tool_delta(0, {"name": one.name, "arguments": None}, id=one.id, type="function")
    yield scene.wire.tool_delta(0, {"arguments": one.arguments})


def _object_arguments(scene: Scene, one: Call, _: Call) -> Iterable[bytes]:
    yield scene.wire.tool_delta(
        0, {"name": one.name, "arguments": orjson.Fragment(one.arguments)}, id=one.id, type="function"
    )


def _repeated_heads(scene: Scene, one: Call, _: Call) -> Iterable[bytes]:
    for part in one.slices():
        yield scene.wire.tool_delta(0, {"name": one.name, "arguments": part}, id=one.id, type="function")


def _null_names(scene: Scene, one: Call, _: Call) -> Iterable[bytes]:
    yield scene.wire.tool_delta(0, {"name": one.name, "arguments": ""}, id=one.id, type="function")
    for part in one.slices():
        yield scene.wire.tool_delta(0, {"name": None, "arguments": part}, id=None, type=None)


def _interleaved(scene: Scene, one: Call, two: Call) -> Iterable[bytes]:
    for index, call in enumerate((one, two)):
        yield scene.wire.tool_delta(
            index, {"name": call.name, "arguments": _halves(call)[0]}, id=call.id, type="function"
        )
    for index, call in enumerate((one, two)):
        yield scene.wire.tool_delta(index, {"arguments": _halves(call)[1]})


def _from_index_one(scene: Scene, one: Call, two: Call) -> Iterable[bytes]:
    return [_complete(scene, index, call, call.id) for index, call in enumerate((one, two), start=1)]


def _same_index(scene: Scene, one: Call, two: Call) -> Iterable[bytes]:
    return [_complete(scene, 0, call, call.id) for call in (one, two)]


def _for_ever(scene: Scene) -> Response:
    return scene.answer(calling(scene.request, [some_call(scene.request)]))


def _unknown_for_ever(scene: Scene) -> Response:
    return scene.answer(calling(scene.request, [_UNKNOWN]))


FAULTS = (
    Fault("args-cut-length", "arguments cut in half, finish_reason length", _whole(_cut_arguments, "length")),
    Fault("args-cut-tool-calls", "arguments cut in half, finish_reason tool_calls", _whole(_cut_arguments)),
    Fault("args-invalid", "arguments that are no JSON", _whole(lambda call: replace(call, arguments='{"x": y}'))),
    Fault("args-list", "arguments that are JSON but no object", _whole(lambda call: replace(call, arguments="[1, 2]"))),
    Fault("args-empty", "arguments are the empty string", _whole(lambda call: replace(call, arguments=""))),
    Fault("args-null", "arguments null in the first delta, whole in the second", _raw(_null_arguments)),
    Fault("args-object", "arguments as an object in place of a string", _raw(_object_arguments)),
    Fault("no-index", "two whole calls without index", _raw(_no_index)),
    Fault("no-index-split", "two calls without index, their arguments in two deltas each", _raw(_no_index_split)),
    Fault("same-index", "two whole calls with different ids and the same index", _raw(_same_index)),
    Fault("index-from-one", "two whole calls whose index starts at 1", _raw(_from_index_one)),
    Fault("interleaved", "two calls whose arguments arrive in turns", _raw(_interleaved)),
    Fault("no-id", "a call without id", _raw(_no_id)),
    Fault("empty-id", "a call whose id is the empty string", _whole(lambda call: replace(call, id=""))),
    Fault("duplicate-ids", "two calls with the same id", _whole(lambda call: replace(call, id="call_same"), count=2)),
    Fault("names-repeated", "id and name on every delta of a call", _raw(_repeated_heads)),
    Fault("names-null", "id and name null on every delta after the first", _raw(_null_names)),
    Fault("unknown-tool", "a tool nobody offered", _whole(lambda call: replace(call, name=_UNKNOWN[0]))),
    Fault("empty-name", "a call whose name is the empty string", _whole(lambda call: replace(call, name=""))),
    Fault("tool-finish-stop", "a tool call with finish_reason stop", _whole(_same, "stop")),
    Fault("tool-loop", "a tool call in every step, for ever", _for_ever),
    Fault("tool-loop-unknown", "a call of a tool nobody offered in every step", _unknown_for_ever),
)
