"""Ids of jobs and sessions, and of events."""

from __future__ import annotations

import time
import uuid
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import canonical_id, new_id
from schemas.job_event import EventId


def test_a_new_id_is_a_uuid_of_version_7() -> None:
    for _ in range(200):
        made = new_id()
        parsed = uuid.UUID(made)
        assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
        assert str(parsed) == made == canonical_id(made)


def test_a_new_id_begins_with_the_time_in_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(new_id()).int >> 80
    assert before <= made <= time.time_ns() // 1_000_000


def test_ids_made_one_after_the_other_sort_in_that_order() -> None:
    made = [new_id() for _ in range(5000)]
    # Where the clock ticks in microseconds only, two may share a tick; never more than neighbours are swapped.
    unsorted = sum(earlier > later for earlier, later in pairwise(made))
    assert unsorted <= 5
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("moment", [0, 1, 999_999, 1_000_000, 1_700_000_000_123_456_789, 2**62])
def test_an_id_is_well_formed_at_any_time(monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: moment)
    parsed = uuid.UUID(new_id())
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == moment // 1_000_000


def test_later_moments_make_later_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for moment in range(0, 3_000_000, 1000):
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: 1_700_000_000_000_000_000 + moment)
        made.append(new_id())
    assert made == sorted(made)


@pytest.mark.parametrize(
    "spelling",
    [
        "0196f0a1-0000-7000-8000-000000000001",
        "0196F0A1-0000-7000-8000-000000000001",
        "0196f0a1000070008000000000000001",
        "{0196f0a1-0000-7000-8000-000000000001}",
        "urn:uuid:0196f0a1-0000-7000-8000-000000000001",
    ],
)
def test_every_spelling_of_a_uuid_is_one_id(spelling: str) -> None:
    assert canonical_id(spelling) == "0196f0a1-0000-7000-8000-000000000001"


@pytest.mark.parametrize("text", ["", "x", "0196f0a1", "0196f0a1-0000-7000-8000-00000000000g", "0" * 33, "../../etc"])
def test_what_is_no_uuid_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        canonical_id(text)


@given(st.tuples(st.integers(0, 10**17), st.integers(0, 10**17)))
def test_an_event_id_is_read_as_it_is_written(pair: tuple[int, int]) -> None:
    assert EventId.parse(str(EventId(*pair))) == pair


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=20))
def test_event_ids_sort_by_epoch_then_number(pairs: list[tuple[int, int]]) -> None:
    assert [tuple(one) for one in sorted(EventId(*pair) for pair in pairs)] == sorted(pairs)


@pytest.mark.parametrize("text", [" 1-2 ", "01-02", "1-2\n"])
def test_an_event_id_is_read_generously(text: str) -> None:
    assert EventId.parse(text) == EventId(1, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "1",
        "1-",
        "-1",
        "1-2-3",
        "-1-2",
        "1--2",
        "a-1",
        "1-a",
        "1.0-1",
        "+1-1",
        "1_0-1",
        "٣-1",
        "1-²",
        "9" * 19 + "-1",
        "1-" + "9" * 5000,
    ],
)
def test_what_is_no_event_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as refusal:
        EventId.parse(text)
    assert len(str(refusal.value)) < 200
