"""`GET /v1/overview`: the operator's view."""

from __future__ import annotations

import asyncio

from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.types import ASGIApp

from gateway.operation import Answer, Operation, json_response
from gateway.requests import tenant_of
from gateway.services import Services
from schemas.heartbeat import FRESH_WITHIN_S, WorkerHeartbeat
from schemas.job_event import rfc3339
from schemas.overview import (
    BreakerOverview,
    FailureOverview,
    Overview,
    QueueOverview,
    Rates,
    ThroughputOverview,
    WorkerOverview,
)
from schemas.version import version
from storage import overview as stored
from storage.clock import MICROSECONDS
from storage.heartbeats import Heartbeats

#: An operator who looks while Redis hangs wants the rest.
REDIS_TIMEOUT_S = 2.0
_MINUTE_S = 60

Alive = list[tuple[WorkerHeartbeat, float]]


class OverviewRoutes:
    """`/v1/overview`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET",
                "/v1/overview",
                "get_overview",
                "Queues, workers, throughput and failures at a glance",
                self._get,
                {200: Answer("The overview. It is there too while Redis is away.", Overview)},
                description="The operator's view: over all tenants, but for `failures`, which are the asking tenant's.",
                # `chatmill top` asks every second.
                quiet=True,
            )
        ]

    async def _get(self, request: Request) -> ASGIApp:
        tenant = tenant_of(request)
        found, alive = await asyncio.gather(self._services.database.read(stored.read_overview, tenant), self._alive())
        return json_response(_view(found, alive))

    async def _alive(self) -> Alive | None:
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_S):
                return await Heartbeats(self._services.log.redis, self._services.settings.namespace).alive()
        except (RedisError, OSError):
            return None


def _view(found: stored.Overview, alive: Alive | None) -> Overview:
    return Overview(
        at=rfc3339(found.at),
        version=version(),
        queues=_queues(found, alive),
        workers=None if alive is None else [_worker(heartbeat, age_s) for heartbeat, age_s in alive],
        throughput=ThroughputOverview(
            last_minute=_rates(found, _MINUTE_S),
            last_5_minutes=_rates(found, stored.WINDOW_S),
            slice_s=stored.SLICE_S,
            finished_by_slice=found.throughput.finished,
        ),
        breakers=[
            BreakerOverview(
                name=row["name"],
                failures=row["failures"],
                opened_at=rfc3339(row["opened_at"]),
                probe_at=_time(row["probe_at"]),
                held=row["held"],
            )
            for row in found.breakers
        ],
        dead_letters=found.dead_letters,
        quarantine=found.quarantine,
        failures=[
            FailureOverview(
                job_id=row["job_id"],
                dead_letter_id=row["id"],
                queue=row["queue"],
                error_code=row["error_code"],
                at=rfc3339(row["created_at"]),
                resolution=row["resolution"],
            )
            for row in found.failures
        ],
        notes=_notes(found, alive),
    )


def _queues(found: stored.Overview, alive: Alive | None) -> list[QueueOverview]:
    served: dict[str, int] = {}
    for heartbeat, _ in alive or ():
        served[heartbeat.queue] = served.get(heartbeat.queue, 0) + 1
    names = sorted({*found.queues, *served})
    return [
        _queue(
            name, found.queues.get(name, stored.QueueCounts()), found.at, None if alive is None else served.get(name, 0)
        )
        for name in names
    ]


def _queue(name: str, counts: stored.QueueCounts, now: int, workers: int | None) -> QueueOverview:
    oldest = counts.oldest_due_at
    return QueueOverview(
        name=name,
        queued=counts.queued,
        due=counts.due,
        oldest_due_s=None if oldest is None else round(max(0, now - oldest) / MICROSECONDS, 1),
        running=counts.running,
        paused=counts.paused_at is not None,
        pause_reason=counts.pause_reason,
        paused_at=_time(counts.paused_at),
        workers=workers,
    )


def _worker(heartbeat: WorkerHeartbeat, age_s: float) -> WorkerOverview:
    faults = heartbeat.find_faults(age_s, FRESH_WITHIN_S)
    return WorkerOverview(**heartbeat.model_dump(), age_s=round(age_s, 1), faults=faults)


def _rates(found: stored.Overview, seconds: int) -> Rates:
    slices = seconds // stored.SLICE_S
    lately = found.throughput
    # The last slice is not over yet.
    lasted_s = (slices - 1) * stored.SLICE_S + found.at / MICROSECONDS % stored.SLICE_S
    return Rates(
        seconds=round(min(lasted_s, found.covers_s), 1),
        finished=sum(lately.finished[-slices:]),
        dead=sum(lately.dead[-slices:]),
        retried=sum(lately.retried[-slices:]),
        cancelled=sum(lately.cancelled[-slices:]),
    )


def _notes(found: stored.Overview, alive: Alive | None) -> list[str]:
    notes = []
    if alive is None:
        notes.append("Redis does not answer: the workers are not known, and new jobs wait")
    if found.covers_s < stored.WINDOW_S - stored.SLICE_S:
        notes.append(f"so much happens that the throughput covers the last {found.covers_s:.0f} s only")
    most = max((counts.queued for counts in found.queues.values()), default=0)
    if most >= stored.COUNT_MOST or found.dead_letters >= stored.COUNT_MOST:
        notes.append(f"nothing is counted beyond {stored.COUNT_MOST}")
    return notes


def _time(at_us: int | None) -> str | None:
    return None if at_us is None else rfc3339(at_us)
