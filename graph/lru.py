"""A small memory of what was used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lru(Generic[T]):
    """Keeps the `size` values used last. Not for several threads at once without a lock around it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value kept under `key`, made now if there is none."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = make()
        if len(self._values) > self._size:
            self._values.popitem(last=False)
        return value
