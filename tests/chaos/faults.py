"""All faults by name, with the part of the stage each belongs to."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable

from tests.chaos import database_faults, process_faults, redis_faults
from tests.chaos.schedule import Fault
from tests.chaos.stage import Stage

Make = Callable[[Stage, random.Random], Awaitable[None]]

BOTH: dict[str, dict[str, Make]] = {
    "worker": {
        "kill_worker": process_faults.kill_worker,
        "kill_worker_child": process_faults.kill_worker_child,
        "freeze_worker": process_faults.freeze_worker,
        "restart_worker": process_faults.restart_worker,
        "roll_workers": process_faults.roll_workers,
    },
    "gateway": {
        "kill_gateway": process_faults.kill_gateway,
        "restart_gateway": process_faults.restart_gateway,
    },
    "redis": {
        "cut_pubsub": redis_faults.cut_pubsub,
        "cut_redis": redis_faults.cut_redis,
        "flush_redis": redis_faults.flush_redis,
        "restart_redis": redis_faults.restart_redis,
        "stop_redis": redis_faults.stop_redis,
        "empty_redis": redis_faults.empty_redis,
        "rollback_redis": redis_faults.rollback_redis,
    },
    "model": {
        "stop_model": process_faults.stop_model,
        "hang_model": process_faults.hang_model,
        "cut_model": process_faults.cut_model,
    },
}
#: By dialect.
DATABASE: dict[str, dict[str, Make]] = {
    "sqlite": {
        "lock_database": database_faults.lock_database,
        "full_disk": database_faults.full_disk,
    },
    "postgresql": {
        "restart_database": database_faults.restart_database,
        "crash_database": database_faults.crash_database,
        "stop_database": database_faults.stop_database,
        "cut_database": database_faults.cut_database,
        "read_only_database": database_faults.read_only_database,
        "step_clock_forward": database_faults.step_clock_forward,
        "step_clock_back": database_faults.step_clock_back,
    },
}
#: Redis then no longer has what it had.
REDIS_FORGETS = frozenset({"flush_redis", "empty_redis", "rollback_redis"})


def all_names() -> list[str]:
    """Every fault there is, on whatever database."""
    return [name for found in (*BOTH.values(), *DATABASE.values()) for name in found]


def faults_for(dialect: str, only: Iterable[str] = ()) -> list[Fault]:
    """The faults that can be made with this database; of those in `only`, if it names any."""
    chosen = set(only)
    found = [Fault(name, family) for family, named in {**BOTH, "database": DATABASE[dialect]}.items() for name in named]
    return [fault for fault in found if not chosen or fault.name in chosen]


def maker(fault: Fault, dialect: str) -> Make:
    """What makes a fault happen."""
    return {**BOTH, "database": DATABASE[dialect]}[fault.family][fault.name]
