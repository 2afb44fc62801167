"""The short form of a chaos run, on both databases: every fault once, a fixed seed, and no rule broken."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.chaos.faults import DATABASE, faults_for
from tests.chaos.report import show
from tests.chaos.run import run

SEED = 7
JOBS = 40
MINUTES = 0.6


@pytest.fixture(autouse=True)
def _no_foreign_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("dialect", DATABASE)
async def test_whatever_dies_every_job_ends_once_and_every_client_with_the_saved_text(
    tmp_path: Path, dialect: str
) -> None:
    outcome = await run(tmp_path, dialect, seed=SEED, jobs=JOBS, minutes=MINUTES)
    said = io.StringIO()
    command = f"scripts/chaos --jobs {JOBS} --minutes {MINUTES} --seed {SEED} --database {dialect} --keep"
    show([outcome], command, Console(file=said, width=200))
    print(said.getvalue())
    assert outcome.good, said.getvalue()
    # It was a run worth the name.
    assert sum(job["status"] == "finished" for job in outcome.evidence.jobs.values()) > JOBS / 4
    assert all(finding.checked for finding in outcome.findings)
    assert set(outcome.made) == {fault.name for fault in faults_for(dialect)}
