"""One named fault, and the names of its variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from demo.response import Response
from demo.scene import Scene


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong (`about`, one line) and how it is played. It may raise ProviderError instead of answering."""

    name: str
    about: str
    play: Callable[[Scene], Response]
