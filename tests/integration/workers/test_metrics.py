"""Each job's end is counted once, whoever ends it, and never again by what repeats its event."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cli.valkey import Valkey
from storage.jobs.claim import claim
from tests.integration.workers.mill import Mill, eventually, running, settled
from tests.integration.workers.scripted import script
from workers import reconciler


def ends(mill: Mill) -> dict[tuple[str, str], float]:
    """How often each (outcome, code) was counted by the worker and by its producer."""
    found: Counter[tuple[str, str]] = Counter()
    for metrics in (mill.writer.metrics, mill.producer.metrics):
        for family in metrics.registry.collect():
            for sample in family.samples:
                if sample.name == "chatmill_jobs_ended_total":
                    found[sample.labels["outcome"], sample.labels["code"]] += int(sample.value)
    return dict(found)


async def test_every_job_is_counted_once_however_it_ends(
    own_valkey: Valkey, sqlite_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "PATIENCE_S", 0.0)
    async with Mill(own_valkey.url, sqlite_url, namespace, lease_s=0.2, lease_renew_s=0.1) as mill:
        await mill.answer(script("fine"))
        await mill.answer(script(("raise", "own")))
        await mill.answer(script(("raise", "useless")))
        await mill.cancel(await mill.accept(script("never")))
        stopped, looking = await running(mill, tmp_path)
        mill.desk.cancel(stopped, "enough")
        await settled(looking)
        await _lose_twice(mill, await mill.accept(script("lost")))
        await mill.accept(script("too late"), deadline_s=0.01)

        async def lapsed() -> bool:
            return (await mill.reconciler.reconcile()).lapsed == 1

        await eventually(lapsed)
        expected = {
            ("ok", ""): 1,
            ("dead", "agent_error"): 1,
            ("dead", "too_long"): 1,
            ("cancelled", ""): 2,
            ("dead", "worker_lost"): 1,
            ("dead", "deadline"): 1,
        }
        assert ends(mill) == expected
        await mill.redis.flushall()
        for _ in range(3):
            await mill.reconciler.reconcile()
        assert ends(mill) == expected


async def _lose_twice(mill: Mill, job_id: str) -> None:
    async def expired() -> bool:
        return (await mill.reconciler.reconcile()).expired == 1

    for _ in range(2):
        claimed = await eventually(lambda: mill.database.write(claim, "chat", "a worker that dies", 0))
        assert claimed is not None
        assert claimed.job_id == job_id
        await eventually(expired)
