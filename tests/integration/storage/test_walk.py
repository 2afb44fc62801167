"""The walk over all transitions meets every rare path and breaks no rule."""

from __future__ import annotations

import pytest

from storage.database import Database
from storage.jobs import settle
from tests.integration.storage.after_walk import AfterWalk

#: Paths that a shorter or lazier walk would miss; none may stay at zero.
RARE = (
    "breaker closed",
    "breaker opened",
    "busy session refused",
    "claimed again after a redrive",
    "claimed to run alone",
    "decided already",
    "discarded",
    "held by a breaker",
    "interrupted while it ran",
    "interrupted while it waited",
    "isolated",
    "let go by a breaker",
    "lost alone",
    "paused",
    "probe failed",
    "probed",
    "redriven",
    "redriven behind another",
    "redriven out of isolation",
    "retained",
    "accepted again",
    "accepted behind another",
    "busy session kept",
    "cancel behind a head",
    "cancel of a queued job",
    "cancel of a running job",
    "cancel refused",
    "claim after a wrong hint",
    "claim found nothing",
    "claim whose reply was lost",
    "dead",
    "dead at once",
    "dead for its deadline",
    "deferred",
    "expire refused",
    "expired",
    "expired for good",
    "expired when it was to be stopped",
    "fail refused",
    "failed when it was to be stopped",
    "finish beats cancel",
    "finish refused",
    "foreign job not found",
    "found lost",
    "heir",
    "heir in another lane",
    "hint spoilt",
    "id refused",
    "lane full",
    "lapse behind a head",
    "lapse of a head",
    "lapse refused",
    "rebuild found again",
    "rebuild refused",
    "rebuild whose reply was lost",
    "rebuilt",
    "release refused",
    "released",
    "released too often",
    "released when it was to be stopped",
    "renewed",
    "retry claimed",
    "session deleted",
    "stopped with text",
    "stopped without text",
    "to be retried",
    "told to stop",
    "untimely refused",
    "unplaced message answered again",
)


@pytest.fixture(autouse=True)
def few_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five releases of one job are too rare for a walk."""
    monkeypatch.setattr(settle, "MAX_RELEASES", 1)


async def test_a_walk_over_all_transitions_breaks_no_rule(database: Database) -> None:
    await AfterWalk(database, seed=20261130).run(500, meet=RARE, most=6000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_long_walks_break_no_rule(database: Database, seed: int) -> None:
    await AfterWalk(database, seed).run(5000, meet=RARE)
