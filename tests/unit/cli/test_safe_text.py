"""What a terminal is spared."""

from __future__ import annotations

import random

import pytest

from cli.safe_text import SafeText, safe_line, safe_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain words, tabs\tand\nlines: é 四 🙂", "plain words, tabs\tand\nlines: é 四 🙂"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;a new title\x07after", "after"),
        ("\x1b]8;;http://a.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("over\rwritten\b\b", "overwritten"),
        ("windows\r\nlines", "windows\nlines"),
        ("\x9b31mC1\x85\x7f", "31mC1"),
        ("\x1bc reset, \x1b(B charset, \x1b7 save", " reset,  charset,  save"),
        ("\x1b[2", ""),
        ("\x1b[2\nnext line", "\nnext line"),
    ],
)
def test_control_characters_and_escape_sequences_are_left_out(text: str, shown: str) -> None:
    assert safe_text(text) == shown


def test_a_string_sequence_without_an_end_does_not_swallow_the_answer() -> None:
    assert safe_text("\x1b]0;" + "x" * 400).endswith("x" * 100)


def test_pieces_are_filtered_like_the_whole() -> None:
    draw = random.Random(3)
    alphabet = "ab[]0;m\x1b\x07\\\n\r\x9b\x18é("
    for _ in range(500):
        text = "".join(draw.choices(alphabet, k=30))
        safe, pieces, rest = SafeText(), [], text
        while rest:
            size = draw.randrange(1, 6)
            pieces.append(safe.feed(rest[:size]))
            rest = rest[size:]
        assert "".join(pieces) == safe_text(text)
        assert not set(safe_text(text)) & set("\x1b\x07\r\x9b\x18")


def test_a_line_is_one_line_of_bounded_width() -> None:
    assert safe_line("two\nlines \x1b[1m and   spaces", 40) == "two lines and spaces"
    assert safe_line("x" * 50, 10) == "x" * 9 + "…"
