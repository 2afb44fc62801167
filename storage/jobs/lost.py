"""What a lost attempt had shown: its worker could not say so any more, but its event log may still have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, select, update

from schemas.border_text import clean_text
from schemas.stream_event import ToolNote
from storage.jobs.move import storable_notes
from storage.tables import attempts

_UNTOLD = attempts.c.shown_text.is_(None) & attempts.c.shown_tools.is_(None)
_LAST = (
    select(attempts.c.attempt, attempts.c.epoch)
    .where(attempts.c.job_id == bindparam("job"), attempts.c.epoch < bindparam("until"))
    .order_by(attempts.c.attempt.desc())
    .limit(1)
)
_KEEP = (
    update(attempts)
    .where(
        attempts.c.job_id == bindparam("the_job"),
        attempts.c.attempt == bindparam("the_attempt"),
        attempts.c.ended_at.is_not(None),
        _UNTOLD,
    )
    .values(shown_text=bindparam("the_text"), shown_tools=bindparam("the_tools"))
)


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """An attempt by its number, and the epoch of its `started`."""

    attempt: int
    epoch: int


def lost_attempt(connection: Connection, job_id: str, ended_by: int) -> LostAttempt | None:
    """The attempt that the transition with epoch `ended_by` ended."""
    row = connection.execute(_LAST, {"job": job_id, "until": ended_by}).one_or_none()
    return None if row is None else LostAttempt(row.attempt, row.epoch)


def keep_shown(connection: Connection, job_id: str, attempt: int, text: str, tools: Sequence[ToolNote]) -> bool:
    """Keep what an attempt that is over had shown; False if that is known already, or the attempt still runs."""
    kept = {"the_text": clean_text(text) or None, "the_tools": storable_notes(tools) or None}
    return connection.execute(_KEEP, {"the_job": job_id, "the_attempt": attempt, **kept}).rowcount == 1
