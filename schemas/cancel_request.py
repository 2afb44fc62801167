"""What may be said when a job is to be stopped."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

DEFAULT_CANCEL_REASON = "requested"


class JobCancelRequest(BaseModel):
    """The optional body of a cancel."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    reason: str = Field(default=DEFAULT_CANCEL_REASON, min_length=1, max_length=200, description="Kept with the job.")
