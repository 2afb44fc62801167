"""The parser of event streams."""

from __future__ import annotations

import random

import pytest

from cli.sse import ServerSentEvent, SseParser

STREAM = (
    ": following\n\n"
    'id: 1-1\nevent: text\ndata: {"text":"é🙂"}\n\n'
    "id: 1-2\ndata:no space\ndata\ndata: three lines\n\n"
    ": a heartbeat\n\n"
    "event: nothing but a name\n\n"
    "retry: 100\nunknown: x\n\n"
    "data: keeps the last id\n\n"
    "data: cut off before its blank line\n"
)
EVENTS = [
    ServerSentEvent('{"text":"é🙂"}', "1-1", "text"),
    ServerSentEvent("no space\n\nthree lines", "1-2"),
    ServerSentEvent("keeps the last id", "1-2"),
]


def parse(*pieces: bytes) -> list[ServerSentEvent]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_same_events_come_out_wherever_the_stream_is_cut(end: str) -> None:
    stream = STREAM.replace("\n", end).encode()
    assert parse(stream) == EVENTS
    assert parse(*(stream[place : place + 1] for place in range(len(stream)))) == EVENTS
    for place in range(len(stream)):
        assert parse(stream[:place], stream[place:]) == EVENTS


def test_any_mixture_of_line_ends_and_pieces_is_read_alike() -> None:
    draw = random.Random(7)
    for _ in range(200):
        stream = "".join(draw.choice(["\n", "\r\n"]) if char == "\n" else char for char in STREAM).encode()
        cuts = sorted(draw.choices(range(len(stream)), k=draw.randrange(9)))
        assert parse(*(stream[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True))) == EVENTS


def test_a_byte_order_mark_at_the_start_is_no_part_of_a_name() -> None:
    assert parse(b"\xef\xbb\xbfdata: x\n\n") == [ServerSentEvent("x")]


def test_an_id_with_a_nul_is_ignored() -> None:
    assert parse(b"id: 1-1\ndata: a\n\nid: 1\x00\ndata: b\n\n")[1].id == "1-1"


def test_bytes_that_are_no_utf8_do_not_end_the_stream() -> None:
    assert parse(b"data: \xff\n\n") == [ServerSentEvent("\ufffd")]
