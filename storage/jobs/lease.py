"""Leases: a worker keeps exactly the attempts it knows of, never "all rows of this worker".

A claim whose reply was lost is an attempt nobody works on; it is not renewed, and so it expires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, bindparam, tuple_, update

from storage.clock import now_us
from storage.tables import jobs

_RENEW = (
    update(jobs)
    .where(
        tuple_(jobs.c.id, jobs.c.attempt).in_(bindparam("held", expanding=True)),
        jobs.c.status == "running",
    )
    .values(lease_until=now_us() + bindparam("lease"))
    .returning(jobs.c.id, jobs.c.attempt, jobs.c.cancel_reason)
)

#: (job id, attempt)
Held = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a renewal found out."""

    #: Attempts that are no longer this worker's.
    lost: frozenset[Held] = frozenset()
    #: Attempts whose job somebody wants stopped, with the reason.
    cancelled: dict[Held, str] = field(default_factory=dict)


def renew(connection: Connection, held: Sequence[Held], lease_us: int) -> Renewal:
    """Renew the leases of the attempts in `held`, for `lease_us` from now by the database's clock."""
    if not held:
        return Renewal()
    rows = connection.execute(_RENEW, {"held": list(held), "lease": lease_us}).all()
    kept = {(row.id, row.attempt) for row in rows}
    return Renewal(
        lost=frozenset(held) - kept,
        cancelled={(row.id, row.attempt): row.cancel_reason for row in rows if row.cancel_reason is not None},
    )
