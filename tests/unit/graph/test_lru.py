"""The LRU remembers what was used last."""

from __future__ import annotations

from graph.lru import Lru


def test_a_value_is_made_once() -> None:
    values: Lru[object] = Lru(2)

    assert values.get("a", object) is values.get("a", object)


def test_what_was_not_used_for_longest_is_forgotten() -> None:
    values: Lru[object] = Lru(2)
    first, second = values.get("a", object), values.get("b", object)
    values.get("a", object)
    values.get("c", object)

    assert len(values) == 2
    assert values.get("a", object) is first
    assert values.get("b", object) is not second
