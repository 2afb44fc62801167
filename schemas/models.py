"""Language models by name: who serves them, at what address, with which key."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

ProviderProfile = Literal["openai", "vllm", "ollama", "strict"]

#: The model the demo server answers as; used when no provider is configured.
DEMO_MODEL = "demo"
#: What OPENAI_API_KEY alone selects when CHATMILL_MODEL does not say otherwise.
DEFAULT_OPENAI_MODEL = "gpt-4o-mini"


class ModelEntry(BaseModel):
    """One `[models.<name>]` table of `chatmill.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    #: The provider's own name for the model; the table's name if left out.
    model: str | None = None
    base_url: str | None = Field(default=None, description="Address of the OpenAI-compatible API, ending in /v1.")
    api_key_env: str = Field(
        default="OPENAI_API_KEY", description="Name of the environment variable that holds the key."
    )
    profile: ProviderProfile = Field(default="openai", description="Which provider's habits to expect.")
    context_window: int | None = Field(default=None, ge=1, description="Tokens the model can read and write in all.")
    price_in: float | None = Field(default=None, ge=0, description="Price of a million prompt tokens.")
    price_out: float | None = Field(default=None, ge=0, description="Price of a million completion tokens.")


class ModelTarget(BaseModel):
    """A model resolved to where and how it is called."""

    model_config = ConfigDict(frozen=True)

    #: The name jobs use.
    name: str
    #: The provider's own name for it.
    model: str
    #: None means OpenAI itself.
    base_url: str | None
    api_key: SecretStr
    profile: ProviderProfile = "openai"
    #: Tokens; None where nobody has said.
    context_window: int | None = None
