"""Faults of time: late answers, pauses, and connections on which nothing more comes."""

from __future__ import annotations

from collections.abc import Iterator

from demo.fault import Fault
from demo.response import EVENTS, Action, Response, Stop
from demo.scene import Scene

#: Seconds between the comments of a server that only keeps its connection alive.
_HEARTBEAT = 1.0


def _slow_headers(scene: Scene) -> Response:
    body = b"".join(scene.frames()) if scene.request.stream else scene.completion()
    return Response(iter((scene.seconds, body)), content_type=_type(scene))


def _slow_start(scene: Scene) -> Response:
    def actions() -> Iterator[Action]:
        opening, *rest = scene.frames()
        yield opening
        yield scene.seconds
        yield b"".join(rest)

    return scene.stream(actions())


def _pause(scene: Scene) -> Response:
    def actions() -> Iterator[Action]:
        frames, shown = scene.frames(), len(scene.half())
        yield b"".join(frames[:shown])
        yield scene.seconds
        yield b"".join(frames[shown:])

    return scene.stream(actions())


def _no_headers(_: Scene) -> Response:
    return Response(iter((Stop.HANG,)))


def _silence(scene: Scene) -> Response:
    return Response(iter((b"", Stop.HANG)), content_type=_type(scene))


def _silence_midway(scene: Scene) -> Response:
    return scene.stream(iter((*scene.half(), Stop.HANG)))


def _silence_heartbeats(scene: Scene) -> Response:
    def actions() -> Iterator[Action]:
        while True:
            yield b": keep-alive\n\n"
            yield _HEARTBEAT

    return scene.stream(actions())


def _silence_after_finish(scene: Scene) -> Response:
    *frames, _ = scene.frames()
    return scene.stream(iter((*frames, Stop.HANG)))


def _silence_after_done(scene: Scene) -> Response:
    return scene.stream(iter((*scene.frames(), Stop.HANG)))


def _type(scene: Scene) -> str:
    return EVENTS if scene.request.stream else "application/json"


FAULTS = (
    Fault("slow-headers", "nothing for [seconds=2], not even headers, then all is well", _slow_headers),
    Fault("slow-start", "headers and role at once, the first word after [seconds=2], then all is well", _slow_start),
    Fault("pause", "half of the answer, a pause of [seconds=2], then the rest", _pause),
    Fault("no-headers", "the request is taken and never answered", _no_headers),
    Fault("silence", "headers, then nothing", _silence),
    Fault("silence-midway", "half of the answer, then nothing", _silence_midway),
    Fault("silence-heartbeats", "comments every second and never an event", _silence_heartbeats),
    Fault(
        "silence-after-finish",
        "the whole answer and its finish_reason, then no [DONE] and no end",
        _silence_after_finish,
    ),
    Fault("silence-after-done", "the whole answer and [DONE], then the connection stays open", _silence_after_done),
)
