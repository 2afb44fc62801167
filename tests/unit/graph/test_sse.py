"""Server-sent events are found however the bytes are torn."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph.sse import ServerEvent, SseParser


def parse(*pieces: bytes) -> list[ServerEvent]:
    parser = SseParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.end()


def data(*pieces: bytes) -> list[bytes]:
    return [event.data for event in parse(*pieces)]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_every_line_ending_ends_a_line(ending: bytes) -> None:
    assert data(b"data: a" + ending * 2 + b"data: b" + ending * 2) == [b"a", b"b"]


def test_the_space_after_the_colon_may_be_missing_and_only_one_is_taken() -> None:
    assert data(b"data:a\n\ndata:  b\n\n") == [b"a", b" b"]


def test_data_lines_are_joined_by_a_line_feed() -> None:
    assert data(b'data: {"a":\ndata: 1}\n\n') == [b'{"a":\n1}']


def test_comments_ids_and_blank_lines_give_no_event() -> None:
    assert data(b": hello\n\nid: 1\n\nretry: 5\n\n\n\ndata: a\nid: 2\n\n: ping\n\n") == [b"a"]


def test_an_event_keeps_its_name_and_the_next_one_has_none() -> None:
    events = parse(b"event: error\ndata: a\n\ndata: b\n\n")

    assert events == [ServerEvent(b"error", b"a"), ServerEvent(b"", b"b")]


def test_an_event_without_data_passes_its_name_on_to_nobody() -> None:
    assert parse(b"event: error\n\ndata: a\n\n") == [ServerEvent(b"", b"a")]


def test_a_byte_order_mark_is_not_part_of_the_first_line() -> None:
    assert data(b"\xef\xbb\xbfdata: a\n\n") == [b"a"]


def test_the_last_event_counts_although_no_blank_line_follows() -> None:
    assert data(b"data: a\n\ndata: [DONE]") == [b"a", b"[DONE]"]


def test_an_event_is_given_as_soon_as_its_blank_line_is_there() -> None:
    parser = SseParser()

    assert parser.feed(b"data: a\r\n\r") == [ServerEvent(b"", b"a")]
    assert parser.feed(b"\ndata: b\n\n") == [ServerEvent(b"", b"b")]


STREAM = (
    b"\xef\xbb\xbfdata: one\n\n: c\r\n\r\nid: 7\rdata: two\rdata: more\r\revent: x\ndata:three\r\n\r\ndata: last\n\n"
)


@given(st.sets(st.integers(1, len(STREAM) - 1)))
def test_where_the_bytes_are_torn_makes_no_difference(cuts: set[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in pairwise(places)]
    expected = [
        ServerEvent(b"", b"one"),
        ServerEvent(b"", b"two\nmore"),
        ServerEvent(b"x", b"three"),
        ServerEvent(b"", b"last"),
    ]

    assert parse(*pieces) == expected
