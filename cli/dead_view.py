"""One dead letter on the terminal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cli.answer import tool_note
from cli.safe_text import safe_line, safe_text
from cli.times import duration, local_time

if TYPE_CHECKING:
    from cli.screen import Screen

#: Of a trace the end says most.
TRACE_LINES = 12
#: What of the request is shown by itself.
_SHOWN_BY_ITSELF = frozenset({"message", "messages", "job_id", "tenant", "version", "queue"})


def show_letter(screen: Screen, letter: dict[str, Any]) -> None:
    """The facts, the request, then attempt after attempt."""
    job, error = letter["job"], letter["error"]
    facts = {
        "dead letter": letter["id"],
        "state": letter["state"] + (f" {local_time(letter['resolved_at'])}" if letter["resolved_at"] else ""),
        "died": local_time(letter["created_at"]),
        "error": f"{error['message']} ({error['code']})",
        "job": f"{letter['job_id']} ({job['status']})",
        "session": job["session_id"],
        "queue": letter["queue"],
        "framework": letter["agent_framework"],
        "model": letter["model"] or "(default)",
        "accepted": local_time(job["created_at"]),
    }
    screen.facts({name: safe_text(str(value)) for name, value in facts.items()})
    _show_request(screen, letter["body"])
    for attempt in letter["attempts"]:
        _show_attempt(screen, attempt)
    if not letter["attempts"]:
        screen.line()
        screen.line("no attempt was made", style="bold")
    if letter["state"] == "lying":
        screen.note(f"[try it again: chatmill dead redrive {letter['id']}]")


def _show_request(screen: Screen, body: dict[str, Any]) -> None:
    screen.line()
    screen.line("request", style="bold")
    asked = body.get("message")
    if asked is None and isinstance(body.get("messages"), list) and body["messages"]:
        last = body["messages"][-1]
        asked = last.get("content") if isinstance(last, dict) else last
    if asked is not None:
        screen.write(safe_text(asked if isinstance(asked, str) else json.dumps(asked)).removesuffix("\n") + "\n")
    rest = {name: value for name, value in body.items() if name not in _SHOWN_BY_ITSELF and value not in ({}, [])}
    if rest:
        screen.line(safe_line(json.dumps(rest, ensure_ascii=False), 2 * screen.width), style="dim")


def _show_attempt(screen: Screen, attempt: dict[str, Any]) -> None:
    screen.line()
    took = duration(attempt["started_at"], attempt["ended_at"])
    heading = f"attempt {attempt['attempt']}  {local_time(attempt['started_at'])}  {took}  {attempt['ending'] or ''}"
    screen.line(heading.rstrip(), style="bold")
    facts = {"worker": attempt["worker"], "model": attempt["model"]}
    if attempt["error"] is not None:
        facts["error"] = f"{attempt['error']['message']} ({attempt['error']['code']})"
    facts["raised"] = attempt["error_class"]
    screen.facts({name: safe_text(str(value)) for name, value in facts.items() if value})
    for note in attempt["shown_tools"]:
        screen.line(safe_line(tool_note(note), screen.width), style="dim")
    if attempt["shown_text"]:
        screen.line("it had said:", style="dim")
        screen.write(safe_text(attempt["shown_text"]).removesuffix("\n") + "\n")
    lines = (attempt["trace"] or "").rstrip().splitlines()
    if len(lines) > TRACE_LINES:
        screen.line(f"… {len(lines) - TRACE_LINES} lines above; all of it with --json", style="dim")
    for line in lines[-TRACE_LINES:]:
        screen.line(safe_text(line), style="dim")
