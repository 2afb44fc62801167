"""What a refused request is answered with: problem details as RFC 9457 describes them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

PROBLEM_MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """Why a request was not served. `code` is for programs, `detail` for people."""

    model_config = ConfigDict(frozen=True)

    type: str = Field(default="about:blank", description="Always `about:blank`: `code` says which problem it is.")
    title: str = Field(description="The phrase of the HTTP status.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What is wrong with this request.")
    code: str = Field(description="A stable word: `invalid`, `malformed`, `not_found`, `not_yet`, `too_large`, …")
    field: str | None = Field(
        default=None, description="The wrong field as a dotted path into the body, or a parameter's or header's name."
    )
