"""Faults of framing: the same whole answer, tool calls included, in frames that few servers send but SSE allows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator

from demo.fault import Fault
from demo.response import Action, Response
from demo.scene import Scene
from demo.wire import DONE, frame

#: Seconds between two writes that the client is to see in two reads.
_APART = 0.005


def _framed(how: Callable[[bytes], bytes]) -> Callable[[Scene], Response]:
    """Frame every payload by a function of its own."""
    return lambda scene: scene.stream(map(how, scene.payloads()))


def _apart(pieces: Iterable[bytes], wait: float = _APART) -> Iterator[Action]:
    for piece in pieces:
        yield piece
        yield wait


def _crlf(payload: bytes) -> bytes:
    return b"data: " + payload + b"\r\n\r\n"


def _cr(payload: bytes) -> bytes:
    return b"data: " + payload + b"\r\r"


def _no_space(payload: bytes) -> bytes:
    return b"data:" + payload + b"\n\n"


def _named(payload: bytes) -> bytes:
    return b"event: message\ndata: " + payload + b"\n\n"


def _several_lines(payload: bytes) -> bytes:
    if payload == DONE:
        return frame(payload)
    lines = json.dumps(json.loads(payload), indent=1).encode().splitlines()
    return b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


def _with_comments(payload: bytes) -> bytes:
    return b"id: 1\n" + frame(payload) + b": ping\n\n\n"


def _with_retry(payload: bytes) -> bytes:
    return b"retry: 3000\n\n" + frame(payload)


def _crlf_split(scene: Scene) -> Response:
    """Both pairs of line ends are torn between CR and LF, as a proxy's buffer may do."""
    torn = itertools.chain.from_iterable((b"data: " + payload + b"\r", b"\n\r", b"\n") for payload in scene.payloads())
    return scene.stream(_apart(torn))


def _byte_by_byte(scene: Scene) -> Response:
    whole = b"".join(scene.frames())
    return scene.stream(_apart((whole[at : at + 1] for at in range(len(whole))), wait=0.0))


def _split_characters(scene: Scene) -> Response:
    """Every write ends within a character of several bytes, where there is one."""
    whole = b"".join(scene.frames())
    cuts = [0, *(at for at in range(1, len(whole)) if whole[at] & 0xC0 == 0x80), len(whole)]
    return scene.stream(_apart(whole[start:end] for start, end in itertools.pairwise(cuts)))


def _bom(scene: Scene) -> Response:
    return scene.stream(iter((b"\xef\xbb\xbf", *scene.frames())))


def _one_write(scene: Scene) -> Response:
    return scene.stream(iter((b"".join(scene.frames()),)))


FAULTS = (
    Fault("crlf", "lines end in CR LF", _framed(_crlf)),
    Fault("crlf-split", "CR LF pairs torn over two reads", _crlf_split),
    Fault("cr", "lines end in CR alone", _framed(_cr)),
    Fault("no-space", "`data:` without a space", _framed(_no_space)),
    Fault("comments", "ids, comments and blank lines between the events", _framed(_with_comments)),
    Fault("retry-lines", "a retry block before every event", _framed(_with_retry)),
    Fault("event-names", "every event is named `message`", _framed(_named)),
    Fault("data-lines", "each JSON object spread over several data lines", _framed(_several_lines)),
    Fault("bom", "a byte order mark before the first event", _bom),
    Fault("byte-by-byte", "one byte per write", _byte_by_byte),
    Fault("split-characters", "characters of several bytes torn over two reads", _split_characters),
    Fault("one-write", "the whole stream in one write", _one_write),
)
