"""A worker process's sign of life, as it is written to Redis and to a file beside it, and shown to operators."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field, field_validator

#: How often a worker process writes its sign of life.
HEARTBEAT_EVERY_S = 3.0
#: A sign in Redis that is older is a dead process's: readers do not count it, and any writer removes it.
HEARTBEAT_STALE_S = 30.0
#: A worker is well while its consumer has polled Redis within this …
POLLED_WITHIN_S = 15.0
#: … and its event loop has moved within this …
LOOP_WITHIN_S = 10.0
#: … and its file is not older than this.
FRESH_WITHIN_S = 15.0


class WorkerHeartbeat(BaseModel):
    """One worker process. Times are RFC 3339 in UTC with milliseconds; durations are seconds."""

    # Rolling deployments: a newer worker's sign may say more.
    model_config = ConfigDict(frozen=True, extra="ignore")

    worker: str = Field(description="Its id, as `started` events name it.")
    host: str
    pid: int
    queue: str
    running: int = Field(description="Attempts that it works on.")
    threads: int = Field(description="Attempts that it has room for.")
    version: str
    started_at: str
    at: str = Field(description="When this was written.")
    polled_s_ago: float | None = Field(
        description="How long before `at` its consumer last reached Redis; null: not since it started."
    )
    loop_lag_s: float = Field(description="How late its event loop was; 0 when it moves.")
    closing: bool = Field(description="Whether it was told to end: it takes no more jobs.")

    @field_validator("at", "started_at")
    @classmethod
    def _is_a_time(cls, value: str) -> str:
        if datetime.fromisoformat(value).tzinfo is None:
            raise ValueError("a time without its zone")
        return value

    def written(self) -> datetime:
        """`at`."""
        return datetime.fromisoformat(self.at)

    def find_faults(self, age_s: float, max_age_s: float) -> list[str]:
        """What is wrong with the worker, in words; `age_s` is how old this sign is. Empty: it is well."""
        found = []
        if abs(age_s) > max_age_s:
            found.append(f"its last sign of life is {age_s:.0f} s old: the process stands still, or cannot write")
        if self.loop_lag_s > LOOP_WITHIN_S:
            found.append(f"its event loop is blocked for {self.loop_lag_s:.0f} s; its log names the job and the place")
        # While it ends it is not supposed to poll.
        if not self.closing:
            if self.polled_s_ago is None and self._up_s() < POLLED_WITHIN_S:
                found.append("it is starting: its consumer has not polled Redis yet")
            elif self.polled_s_ago is None:
                found.append("its consumer has not polled Redis since it started: is Redis there?")
            elif self.polled_s_ago > POLLED_WITHIN_S:
                found.append(f"its consumer has not polled Redis for {self.polled_s_ago:.0f} s: is Redis there?")
        return found

    def _up_s(self) -> float:
        return (self.written() - datetime.fromisoformat(self.started_at)).total_seconds()
