"""The benchmarks run, on sizes that say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import claims
from benchmarks.claims import measure_claims


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_the_costs_of_claims_are_measured(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"ROUNDS": 3, "PASSES": 2, "CLAIMERS": 2, "COMPETE_S": 0.5}.items():
        monkeypatch.setattr(claims, name, value)
    report = await measure_claims(kind, finished=50, queued=20)
    assert report["claim with its commit"]["count"] == 3
    assert report["looks"].keys() >= {"retention", "overview", "recent moves"}
    assert report["2 processes, claim with its commit"]["count"] >= 2
