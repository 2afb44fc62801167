"""What the model says in one turn, before it is put on the wire."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Finish = Literal["stop", "length", "tool_calls", "content_filter"]

#: A word with the white space before it; long runs without any (Chinese, base64) are cut so that they stream as well.
_WORD = re.compile(r"\s*\S{1,24}|\s+$")

#: One tool call's arguments are streamed in slices of this many characters, as a real model does …
_SLICE = 8
#: … but in no more than this many slices, so that large arguments do not take for ever.
_SLICES = 64


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call: its id, the function's name, its arguments as the model wrote them (JSON, if all is well)."""

    id: str
    name: str
    arguments: str

    def slices(self) -> Iterator[str]:
        """The arguments in the pieces in which they are streamed."""
        size = max(_SLICE, -(-len(self.arguments) // _SLICES))
        for start in range(0, len(self.arguments), size):
            yield self.arguments[start : start + size]


@dataclass(frozen=True, slots=True)
class Reply:
    """One assistant message and how it ends. `stamped` puts the time of sending after each word (see `controls`)."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    finish: Finish = "stop"
    reasoning: str = ""
    refusal: str | None = None
    stamped: bool = False

    @property
    def completion_tokens(self) -> int:
        """The words of everything the model wrote."""
        written = sum(len(words(text)) for text in (self.reasoning, self.text, self.refusal or ""))
        return written + sum(1 + len(call.arguments.split()) for call in self.calls)


def words(text: str) -> list[str]:
    """Split a text into the pieces that are streamed: joined again they are exactly the text."""
    return _WORD.findall(text)
