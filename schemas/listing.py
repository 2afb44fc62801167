"""What a gateway offers, as clients are told: its models, frameworks, tools, and itself."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Listing(BaseModel):
    model_config = ConfigDict(frozen=True)


class Model(_Listing):
    id: str
    default: bool = Field(description="Whether jobs that name no model get this one.")


class Models(_Listing):
    """The models a job may name."""

    data: list[Model]


class Framework(_Listing):
    id: str
    label: str = Field(description="What people read.")
    default: bool


class Frameworks(_Listing):
    """The agent frameworks a session or a job may name."""

    data: list[Framework]


class ToolName(_Listing):
    id: str
    builtin: bool = Field(description="Whether it ships with chatmill.")


class Tools(_Listing):
    """The tools a session or a job may allow."""

    data: list[ToolName]


class Welcome(_Listing):
    """What this is and where to go from here."""

    name: Literal["chatmill"] = "chatmill"
    version: str
    links: dict[str, str]


class Alive(_Listing):
    """The process serves requests."""

    status: Literal["ok"] = "ok"


class Part(_Listing):
    """One thing the gateway needs."""

    ready: bool
    detail: str = Field(description="What is there, or what is wrong.")


class Readiness(_Listing):
    """Whether everything the gateway needs is there."""

    ready: bool
    redis: Part
    database: Part
    migrations: Part
