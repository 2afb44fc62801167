"""What comes in from outside is storable once it is in."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.border_text import MAX_DEPTH, TextRepair, clean_json, clean_text, parse_json
from schemas.errors import MalformedRequest

#: Any code points, surrogates included, and more of the troublesome ones than chance would give.
TEXT = st.text(st.one_of(st.characters(), st.sampled_from("\x00\ud83d\ude0b\ud800\udfff\ufffd\u2028a")), max_size=30)
NUMBERS = st.one_of(st.integers(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=12,
)


def is_storable(text: str) -> bool:
    return "\x00" not in text and text.encode("utf-8", "replace").decode() == text


@given(TEXT)
@example("a\ud83d")
@example("\ude0b")
@example("\ude0b\ud83d")
@example("\x00\x00")
def test_cleaned_text_is_storable(text: str) -> None:
    cleaned = clean_text(text)
    assert is_storable(cleaned)
    assert clean_text(cleaned) == cleaned


@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])))
def test_storable_text_stays_as_it_is(text: str) -> None:
    assert clean_text(text) == text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\ud83d\ude0bb", "a😋b"),
        ("a\ud83db", "a\ufffdb"),
        ("c\ude0bd", "c\ufffdd"),
        ("\ud83d\ud83d\ude0b", "\ufffd😋"),
        ("a\x00b", "a\ufffdb"),
        ("\x00\ud800", "\ufffd\ufffd"),
        ("😋\ud800", "😋\ufffd"),
    ],
)
def test_a_split_pair_is_joined_and_a_lone_half_replaced(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned


@given(TEXT, st.lists(st.integers(0, 30)))
def test_text_in_pieces_is_cleaned_as_the_whole(text: str, cuts: list[int]) -> None:
    places = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    repair = TextRepair()
    repaired = [repair.feed(piece) for piece in pieces]
    for piece in repaired:
        assert is_storable(piece)
    assert "".join(repaired) + repair.flush() == clean_text(text)
    assert repair.flush() == ""


def test_half_a_character_is_held_back_until_the_other_half_comes() -> None:
    repair = TextRepair()
    assert [repair.feed("a\ud83d"), repair.feed(""), repair.feed("\ude0bb")] == ["a", "", "😋b"]
    assert [repair.feed("\ud83d"), repair.flush()] == ["", "\ufffd"]


@given(JSON)
def test_cleaned_json_can_be_written_and_read_back(value: Any) -> None:
    cleaned = clean_json(value)
    assert orjson.loads(orjson.dumps(cleaned)) == cleaned
    assert clean_json(cleaned) == cleaned


@given(JSON)
def test_whatever_json_says_is_parsed_to_something_storable(value: Any) -> None:
    """Written as Python writes it: escaped surrogates and NUL, integers of any size."""
    parsed = parse_json(json.dumps(value))
    assert parsed == clean_json(value)
    assert is_storable(json.dumps(parsed, ensure_ascii=False))


@given(st.one_of(st.binary(max_size=60), TEXT, TEXT.map(lambda text: f'{{"a": "{text}"}}')))
@example(b'"\xed\xa0\x80"')
@example(b"\xff\xfe1\x00")
@example(b"\xef\xbb\xbf{}")
@example('{"a": 1, "a": 2}')
@example("9" * 5000)
@example('["\\u0000", ' + "9" * 5000 + "]")
@example("[" * 100_000)
@example('["\\u0000", ' + "[" * 100_000)
def test_any_bytes_are_parsed_or_refused(data: bytes | str) -> None:
    try:
        parsed = parse_json(data)
    except MalformedRequest:
        pass
    else:
        assert orjson.loads(orjson.dumps(parsed)) == parsed


@pytest.mark.parametrize(
    "data", [b'{"a":"x\\u0000\\ud800y"}', bytearray(b'{"a":"x\\u0000\\ud800y"}'), '{"a":"x\\u0000\ud800y"}']
)
def test_nul_and_lone_surrogates_are_forgiven(data: bytes | bytearray | str) -> None:
    assert parse_json(data) == {"a": "x\ufffd\ufffdy"}


@pytest.mark.parametrize(
    "data",
    [
        "",
        " ",
        "{",
        "[1,]",
        "{'a': 1}",
        "nul",
        "NaN",
        "-Infinity",
        '["\\u0000", NaN]',
        '"\x01"',
        "1 2",
        b"\xff",
        "1e999",
        "-1e999",
        '["\\u0000", 1e999]',
    ],
)
def test_what_is_no_json_is_refused(data: bytes | str) -> None:
    with pytest.raises(MalformedRequest):
        parse_json(data)


@pytest.mark.parametrize("prefix", ["", '"\\u0000",'], ids=["fast", "slow"])
@pytest.mark.parametrize(("before", "after"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded(prefix: str, before: str, after: str) -> None:
    def nested(levels: int) -> str:
        return f"[{prefix}{before * levels}1{after * levels}]"

    orjson.dumps(parse_json(nested(MAX_DEPTH - 1)))
    for levels in (MAX_DEPTH, 253, 254, 255, 1023, 1024, 50_000):
        with pytest.raises(MalformedRequest, match="nested"):
            parse_json(nested(levels))


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 10**40, 10**308])
def test_integers_beyond_64_bits_become_floats_on_either_path(number: int) -> None:
    exact = -(2**63) <= number < 2**64
    for data in (f"[{number}]", f'["\\u0000", {number}]'):
        parsed = parse_json(data)[-1]
        assert parsed == (number if exact else float(number))
        assert isinstance(parsed, int) == exact
        orjson.dumps(parsed)
    assert clean_json(True) is True


@pytest.mark.parametrize("number", [10**309, -(10**400), float("inf"), float("nan")])
def test_numbers_that_json_has_not_are_refused(number: float) -> None:
    with pytest.raises(MalformedRequest):
        clean_json({"a": [number]})


def test_keys_are_cleaned_too() -> None:
    assert clean_json({"a\x00": {"\ud800": 1}}) == {"a\ufffd": {"\ufffd": 1}}


@pytest.mark.parametrize("data", [b"caf\xc3\xa9 \xc3", b'"caf\xc3"', b'["\\u0000", "\xc3"]'])
def test_what_is_no_utf_8_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        parse_json(data)
