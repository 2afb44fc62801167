"""Metrics of several real processes add up, whatever becomes of the processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from workers.metrics_folder import MetricsFolder

COUNTING = """
import sys
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
registry = CollectorRegistry()
Counter("jobs", "Jobs.", registry=registry).inc(3)
Histogram("wait", "Waits.", registry=registry, buckets=(1, 2)).observe(1.5)
Gauge("open", "Open.", registry=registry, multiprocess_mode="livesum").set(5)
print("counted", flush=True)
sys.stdin.read()
"""


class Counting:
    """A process that counts 3 jobs, one wait and 5 open ones, and stays until it is killed."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", COUNTING],
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"counted\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    MetricsFolder(tmp_path / "metrics").prepare()
    return tmp_path / "metrics"


def values(path: Path) -> dict[str, float]:
    text = MetricsFolder(path).expose().decode()
    return {name: float(value) for name, value in re.findall(r"^([a-z]\S*) (\S+)$", text, re.MULTILINE)}


def test_counts_of_two_processes_add_up_and_outlive_one_that_is_killed(path: Path) -> None:
    first, second = Counting(path), Counting(path)
    try:
        assert (values(path)["jobs_total"], values(path)["open"]) == (6, 10)
        first.kill()
        left = values(path)
        assert (left["jobs_total"], left["open"]) == (6, 5)
        assert (left['wait_bucket{le="2.0"}'], left["wait_count"], left["wait_sum"]) == (2, 2, 3)
    finally:
        first.kill()
        second.kill()


def test_the_folder_does_not_grow_with_restarts(path: Path) -> None:
    for times in range(1, 5):
        Counting(path).kill()
        assert values(path)["jobs_total"] == 3 * times
        assert {file.name for file in path.iterdir()} == {"counter_gone.db", "histogram_gone.db", "lock"}


def test_a_prepared_folder_has_forgotten_earlier_runs(path: Path) -> None:
    Counting(path).kill()
    MetricsFolder(path).prepare()
    assert values(path) == {}


def test_one_that_was_killed_before_it_wrote_anything_hides_nothing(path: Path) -> None:
    dead = Counting(path)
    dead.kill()
    (path / f"histogram_{dead.pid}.db").write_bytes(b"")
    assert values(path)["jobs_total"] == 3
