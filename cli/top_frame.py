"""One frame of `chatmill top`, fitted into the terminal: what needs somebody comes before what is well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.safe_text import safe_line
from cli.times import local_time
from cli.top_text import seconds, sparkline

if TYPE_CHECKING:
    from cli.top import Look

#: Rows of a table where there is room for everything.
_UNBOUNDED = 1000
_BAD, _WARN, _GOOD, _DIM = "bold red", "yellow", "green", "dim"

Row = Sequence[Text]
#: Something to draw, and how many lines it takes.
_Lines = tuple[RenderableType, int]


class _Part:
    """A table of the frame: a headline, columns, rows of which the first matter most."""

    def __init__(self, title: str, columns: Sequence[str], rows: Sequence[Row], empty: Text) -> None:
        self.title = title
        self.columns = columns
        self.rows = rows
        self.empty = empty

    def lines(self, rows: int, width: int) -> list[_Lines]:
        """The part with at most so many rows; says how many more there are."""
        if not self.rows:
            return [(_line(width, (self.title, "bold"), "  ", self.empty), 1)]
        if rows <= 0:
            return [(_line(width, (self.title, "bold"), f"  {len(self.rows)}, more than fit here"), 1)]
        shown = self.rows if len(self.rows) <= rows else self.rows[: rows - 1]
        table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
        for number, column in enumerate((self.title, *self.columns)):
            right = number > 0 and column.endswith(" ")
            table.add_column(column.strip(), no_wrap=True, overflow="ellipsis", justify="right" if right else "left")
        for row in shown:
            table.add_row(*row)
        left = len(self.rows) - len(shown)
        return [(table, 1 + len(shown)), *([(Text(f"… {left} more", _DIM), 1)] if left else [])]


def frame(look: Look, width: int, height: int | None) -> RenderableType:
    """What is drawn for a look, in at most `height` lines; None is as many as it takes."""
    head = _head(look, width)
    most = _UNBOUNDED if height is None else height
    drawn: list[_Lines] = [(line, 1) for line in head]
    overview = look.overview
    if overview is not None:
        parts = [_queues(overview), _workers(overview), *_breakers(overview), _failures(overview)]
        # An empty line and a line of headings for each.
        room = most - len(head) - 2 * len(parts)
        shares = _share([len(part.rows) for part in parts], room)
        for part, rows in zip(parts, shares, strict=True):
            drawn += [(Text(), 1), *part.lines(rows, width)]
    fitting: list[RenderableType] = []
    for renderable, lines in drawn:
        most -= lines
        if most >= 0:
            fitting.append(renderable)
    return Group(*fitting)


def _share(wanted: Sequence[int], room: int) -> list[int]:
    """How many rows each part gets: a few each, then all the others in turn while there is room."""
    shares = [0] * len(wanted)
    while room > 0:
        hungry = [place for place, rows in enumerate(wanted) if shares[place] < rows]
        if not hungry:
            break
        for place in hungry[:room]:
            shares[place] += 1
        room -= len(hungry[:room])
    return shares


def _head(look: Look, width: int) -> list[Text]:
    """The lines above the tables, each of one line."""
    overview = look.overview
    url = safe_line(look.url, 60)
    if overview is None:
        trouble = look.trouble or f"asking {url} …"
        return [Text("chatmill top", "bold"), Text(safe_line(trouble, width), _BAD if look.trouble else _DIM)]
    lines = [
        _line(
            width,
            ("chatmill ", "bold"),
            (_plain(overview["version"]), "bold"),
            f"  {url}  ",
            (local_time(overview["at"]), _DIM),
        ),
        *_throughput(overview["throughput"], width),
        _lying(overview, width),
    ]
    if look.trouble is not None:
        since = local_time(overview["at"])
        lines.append(Text(safe_line(f"as of {since}: {look.trouble}", width), _BAD))
    lines += [Text(safe_line(note, width), _WARN) for note in overview["notes"]]
    return lines


def _throughput(throughput: Mapping[str, Any], width: int) -> list[Text]:
    minute, longer = throughput["last_minute"], throughput["last_5_minutes"]
    return [
        _line(
            width,
            ("finished/s   ", "bold"),
            f"{_rate(minute)} (1 min)  {_rate(longer)} (5 min)  ",
            (sparkline(throughput["finished_by_slice"]), _GOOD),
        ),
        _line(
            width,
            ("last minute  ", "bold"),
            f"{minute['finished']} finished, {minute['retried']} retried, ",
            (f"{minute['dead']} dead", _BAD if minute["dead"] else ""),
            f", {minute['cancelled']} cancelled",
        ),
    ]


def _lying(overview: Mapping[str, Any], width: int) -> Text:
    dead, unreadable = overview["dead_letters"], overview["quarantine"]
    return _line(
        width,
        ("lying there  ", "bold"),
        (f"{dead} dead letter{'' if dead == 1 else 's'}", _WARN if dead else ""),
        ", ",
        (f"{unreadable} in quarantine", _WARN if unreadable else ""),
    )


def _queues(overview: Mapping[str, Any]) -> _Part:
    def urgency(queue: Mapping[str, Any]) -> tuple[bool, int, str]:
        # By ten seconds, or rows would change places at every look.
        return (not _unserved(queue), -int((queue["oldest_due_s"] or 0.0) // 10), queue["name"])

    rows = [
        (
            _cell(queue["name"], 40),
            Text(str(queue["queued"])),
            Text(str(queue["due"])),
            Text(seconds(queue["oldest_due_s"]), _WARN if (queue["oldest_due_s"] or 0) >= 10 else ""),
            Text(str(queue["running"])),
            Text("?" if queue["workers"] is None else str(queue["workers"]), _BAD if _unserved(queue) else ""),
            _queue_state(queue),
        )
        for queue in sorted(overview["queues"], key=urgency)
    ]
    columns = ("queued ", "due ", "oldest ", "running ", "workers ", "")
    return _Part("queue", columns, rows, Text("nothing is queued and nobody serves a queue", _DIM))


def _unserved(queue: Mapping[str, Any]) -> bool:
    return bool(queue["workers"] == 0 and queue["queued"] > 0)


def _queue_state(queue: Mapping[str, Any]) -> Text:
    if queue["paused"]:
        reason = f": {queue['pause_reason']}" if queue["pause_reason"] else ""
        return Text(safe_line(f"paused{reason}", 200), _WARN)
    return Text("no worker serves it", _BAD) if _unserved(queue) else Text()


def _workers(overview: Mapping[str, Any]) -> _Part:
    workers = overview["workers"]
    if workers is None:
        return _Part("worker", (), (), Text("not known: Redis does not answer", _BAD))
    rows = [
        (
            _cell(worker["worker"], 60),
            _cell(worker["queue"], 20),
            Text(f"{worker['running']}/{worker['threads']}"),
            Text(seconds(worker["polled_s_ago"]) or "never"),
            Text(f"{worker['loop_lag_s']:.1f} s", _BAD if worker["loop_lag_s"] >= 1 else ""),
            _cell(worker["version"], 12),
            _worker_state(worker),
        )
        for worker in sorted(workers, key=lambda worker: (not worker["faults"], worker["queue"], worker["worker"]))
    ]
    columns = ("queue", "running ", "polled ", "loop lag ", "version", "")
    return _Part("worker", columns, rows, Text("no worker process has given a sign of life", _BAD))


def _worker_state(worker: Mapping[str, Any]) -> Text:
    if worker["faults"]:
        return Text(safe_line("; ".join(worker["faults"]), 300), _BAD)
    return Text("shutting down", _WARN) if worker["closing"] else Text("well", _GOOD)


def _breakers(overview: Mapping[str, Any]) -> list[_Part]:
    """The open breakers; no part at all if there are none."""
    rows = [
        (
            _cell(breaker["name"], 60),
            Text(str(breaker["failures"])),
            Text(str(breaker["held"])),
            Text(local_time(breaker["opened_at"])),
            Text(local_time(breaker["probe_at"]) if breaker["probe_at"] else ""),
        )
        for breaker in overview["breakers"]
    ]
    columns = ("failures ", "jobs held ", "open since", "next probe")
    return [_Part("open breaker", columns, rows, Text())] if rows else []


def _failures(overview: Mapping[str, Any]) -> _Part:
    rows = [
        (
            _cell(failure["job_id"], 36),
            _cell(failure["error_code"], 40),
            _cell(failure["queue"], 20),
            Text(local_time(failure["at"])),
            _cell(failure["resolution"] or "", 12),
        )
        for failure in overview["failures"]
    ]
    return _Part("failed job", ("error", "queue", "when", ""), rows, Text("none", _DIM))


def _rate(rates: Mapping[str, Any]) -> str:
    return f"{rates['finished'] / max(rates['seconds'], 1.0):.1f}"


def _cell(text: str, width: int) -> Text:
    return Text(_plain(text, width))


def _plain(text: str, width: int = 200) -> str:
    return safe_line(text, width)


def _line(width: int, *parts: str | Text | tuple[str, str]) -> Text:
    line = Text.assemble(*parts, no_wrap=True, overflow="ellipsis")
    line.truncate(width, overflow="ellipsis")
    return line
