"""Texts of unknown size, cut to a size one can afford."""

from __future__ import annotations


def capped_text(text: str, limit: int) -> str:
    """The text if it has at most `limit` characters, else its beginning and end with a note of what is missing."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} characters left out …]\n{text[len(text) - tail :]}"
