"""What a user's text can make the demo model do, in square brackets. Tests and benchmarks steer it by these.

| in the text | effect |
|---|---|
| `[words=200]` | answer with exactly 200 words: `word1 word2 … word200` |
| `[stamp]` | with `[words=N]`: each word ends in `@` and the Unix time of its sending in microseconds |
| `[say:some text]` | answer with exactly this text; `[say:"…"]` takes a JSON string, for brackets that do not pair |
| `[call:name {"a": 1}]` | call this tool with exactly these arguments, also invalid ones; several are parallel calls |
| `[then]` | separates rounds: `[call:a {}][then][say:Now b.][call:b {}][then][say:Done.]` |
| `[rounds=3]` | play the rounds that have calls three times over |
| `[pace=50]`, `[first=500]` | milliseconds between tokens, and before the first one |
| `[seconds=2]` | the length of a fault's pause or delay |
| `[retry-after=5]` | the Retry-After header, in seconds, of a fault that has one |

Tools are called only if the request offers any. After the last round the model answers in words.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

#: More words than any test needs, and few enough to hold in memory.
MAX_WORDS = 200_000
#: Enough to run into any step limit.
MAX_ROUNDS = 1_000

_NUMBER = re.compile(r"\[(words|rounds|pace|first|seconds|retry-after)=(\d{1,9}(?:\.\d{1,6})?)\]")
_OPENING = re.compile(r"\[(?:say:|call:([\w.-]+)\s*)")


@dataclass(frozen=True, slots=True)
class Round:
    """What one model call is told to produce: a text, or None for the usual words, and calls as (name, arguments)."""

    text: str | None = None
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Controls:
    """The controls found in a text; `plain` is the text without them. Times are seconds; None means not given."""

    plain: str
    rounds: tuple[Round, ...] = ()
    words: int | None = None
    stamp: bool = False
    pace: float | None = None
    first: float | None = None
    seconds: float | None = None
    retry_after: float | None = None


def parse_controls(text: str) -> Controls:
    """Read the controls of a user's text. Anything that is not quite a control is ordinary text."""
    if "[" not in text:
        return Controls(plain=text.strip())
    rounds, plain = [], []
    for segment in text.split("[then]"):
        found, rest = _read_round(segment)
        plain.append(rest)
        if found != Round():
            rounds.append(found)
    rest = "".join(plain)
    numbers = {name: float(value) for name, value in _NUMBER.findall(rest)}
    stamp = "[stamp]" in rest
    return Controls(
        plain=_NUMBER.sub("", rest).replace("[stamp]", "").strip(),
        rounds=_repeated(tuple(rounds), int(numbers.get("rounds", 1))),
        words=min(int(numbers["words"]), MAX_WORDS) if "words" in numbers else None,
        stamp=stamp,
        pace=_seconds(numbers.get("pace")),
        first=_seconds(numbers.get("first")),
        seconds=numbers.get("seconds"),
        retry_after=numbers.get("retry-after"),
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _repeated(rounds: tuple[Round, ...], times: int) -> tuple[Round, ...]:
    calling = tuple(one for one in rounds if one.calls)
    return calling * min(times - 1, MAX_ROUNDS) + rounds


def _read_round(segment: str) -> tuple[Round, str]:
    """The round a segment describes, and the segment without it."""
    text: str | None = None
    calls: list[tuple[str, str]] = []
    rest, position = [], 0
    while opening := _OPENING.search(segment, position):
        end = _closing(segment, opening.end())
        if end is None:
            break
        inner = segment[opening.end() : end]
        if opening[1]:
            calls.append((opening[1], inner.strip() or "{}"))
        else:
            text = (text or "") + _unquoted(inner)
        rest.append(segment[position : opening.start()])
        position = end + 1
    rest.append(segment[position:])
    return Round(text, tuple(calls)), "".join(rest)


def _closing(text: str, start: int) -> int | None:
    """Where the bracket that was opened before `start` closes: past a JSON value, or at the one that pairs with it."""
    if text[start : start + 1] in ("{", '"'):
        try:
            _, end = json.JSONDecoder().raw_decode(text, start)
        except ValueError:
            pass
        else:
            if text[end : end + 1] == "]":
                return end
    depth = 0
    for index in range(start, len(text)):
        if text[index] == "]":
            if depth == 0:
                return index
            depth -= 1
        elif text[index] == "[":
            depth += 1
    return None


def _unquoted(inner: str) -> str:
    """The text of `[say:…]`; halves of surrogate pairs, which no JSON can carry, become U+FFFD."""
    if inner.startswith('"'):
        try:
            value = json.loads(inner)
        except ValueError:
            return inner
        if isinstance(value, str):
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return inner
