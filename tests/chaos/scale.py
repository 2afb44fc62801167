"""How long things take in a run: a short one shortens outages and leases alike, so that each fault still bites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

#: Runs up to this long are short ones.
SHORT_MINUTES = 2.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Times in seconds."""

    #: How long faults are made.
    faults_s: float
    lease_s: float
    lease_renew_s: float
    #: How long an outage lasts.
    outage_s: float
    #: How long a worker stands still: past its lease.
    freeze_s: float
    #: How far back a restored file reaches.
    rollback_s: float
    #: Between two faults, at most.
    pause_s: float
    #: What attempts get after SIGTERM.
    grace_s: float
    attempt_timeout_s: float
    #: How far a clock is stepped.
    step_s: float
    #: How long the end of all jobs may take once the faults are over.
    drain_s: float
    short: bool

    @classmethod
    def of(cls, minutes: float) -> Self:
        """The scale of a run in which faults are made for so many minutes."""
        if minutes <= SHORT_MINUTES:
            return cls(
                faults_s=minutes * 60,
                lease_s=4,
                lease_renew_s=0.5,
                outage_s=3,
                freeze_s=6,
                rollback_s=1.5,
                pause_s=1,
                grace_s=1.5,
                attempt_timeout_s=30,
                step_s=3,
                drain_s=120,
                short=True,
            )
        return cls(
            faults_s=minutes * 60,
            lease_s=6,
            lease_renew_s=1,
            outage_s=20,
            freeze_s=9,
            rollback_s=8,
            pause_s=4,
            grace_s=4,
            attempt_timeout_s=30,
            step_s=20,
            drain_s=240,
            short=False,
        )

    def environment(self) -> dict[str, str]:
        """The settings of workers and gateways that go with it."""
        return {
            "CHATMILL_LEASE_S": str(self.lease_s),
            "CHATMILL_LEASE_RENEW_S": str(self.lease_renew_s),
            "CHATMILL_SHUTDOWN_GRACE_S": str(self.grace_s),
            "CHATMILL_ATTEMPT_TIMEOUT_S": str(self.attempt_timeout_s),
            "CHATMILL_RETRY_DELAY_S": "1.5",
            "CHATMILL_RECONCILE_S": "0.3",
            "CHATMILL_BREAKER_FAILURES": "4",
            "CHATMILL_BREAKER_PAUSE_S": "2",
            "CHATMILL_BREAKER_LONGEST_PAUSE_S": "4",
            "CHATMILL_HEARTBEAT_S": "2",
            "CHATMILL_IDLE_CHECK_S": "1",
        }
