"""Settings: environment variables first, then `chatmill.toml`; read once, in an entry point, and handed in."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from schemas.chat_job import DEFAULT_QUEUE, REQUEST_MAX_BYTES, QueueName
from schemas.errors import ConfigurationError
from schemas.frameworks import DEFAULT_FRAMEWORK, FRAMEWORK_CHOICES, installed_frameworks
from schemas.models import DEFAULT_OPENAI_MODEL, DEMO_MODEL, ModelEntry, ModelTarget
from schemas.tool import BUILTIN_TOOLS

CONFIG_FILE = "chatmill.toml"
#: Names the folder in which the processes of one machine share their metrics; prometheus_client reads it when it is
#: imported, so it must be set before.
METRICS_FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
#: How the demo models are recognised: `demo`, `demo-slow`, `demo-fault-status-429`, …
DEMO_PREFIX = f"{DEMO_MODEL}-"


class FrameworkEntry(BaseModel):
    """One `[frameworks.<name>]` table: a handler class of the user's own."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    handler: str = Field(description="Dotted path of a BaseAgentHandler, as `package.module:Class`.")
    label: str | None = Field(default=None, description="What people read; the name if left out.")


class Settings(BaseSettings):
    """Everything that can be set. Times end in `_s` and are seconds; sizes end in `_bytes`."""

    model_config = SettingsConfigDict(
        env_prefix="CHATMILL_", extra="ignore", frozen=True, env_ignore_empty=True, allow_inf_nan=False
    )

    # Where things are
    config: Path | None = Field(
        default=None,
        description="The settings file. Default: `chatmill.toml` in the working directory, if there is one.",
    )
    namespace: str = Field(
        default="chatmill",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$",
        description="Prefix of every Redis key, queue and channel. Two deployments on one Redis need two of them.",
    )
    data_dir: Path = Field(default=Path(".chatmill"), description="Folder of everything `chatmill up` keeps.")
    redis_url: SecretStr = Field(
        default=SecretStr("redis://127.0.0.1:6379/0"),
        validation_alias=AliasChoices("REDIS_URL", "redis_url"),
        description="Redis or Valkey. `chatmill up` starts one of its own when this is not set.",
    )
    database_url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("DATABASE_URL", "database_url"),
        description="`postgresql://…` or `sqlite:///file`. Default: `chatmill.db` in the data folder.",
    )
    host: str = Field(
        default="127.0.0.1", description="Address the gateway listens on. Only loopback until keys exist."
    )
    port: int = Field(default=8080, ge=0, le=65535, description="Port of the gateway; 0 takes a free one.")
    url: str | None = Field(default=None, description="Where the command line finds the gateway.")

    # Logs
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="What is logged.")
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto",
        description="`console` for people, `json` for programs; `auto` asks whether stderr is a terminal.",
    )

    # Models and agents
    openai_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("OPENAI_API_KEY", "openai_api_key"),
        description="Key of the OpenAI-compatible provider.",
    )
    openai_base_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("OPENAI_BASE_URL", "openai_base_url"),
        description="Address of the OpenAI-compatible provider, ending in /v1. Default: OpenAI itself.",
    )
    model: str | None = Field(
        default=None,
        description=f"Model of jobs that name none: `{DEFAULT_OPENAI_MODEL}` with a provider, else `{DEMO_MODEL}`.",
    )
    demo_url: str | None = Field(
        default=None, description="Address of the demo model server, ending in /v1. `chatmill up` sets it."
    )
    agent_framework: str = Field(default=DEFAULT_FRAMEWORK, description="Framework of sessions that name none.")
    attempt_timeout_s: float = Field(default=120.0, gt=0, description="How long one attempt may take.")
    recursion_limit: int = Field(
        default=10, ge=2, le=200, description="Graph steps of one answer: a model call and its tools are two."
    )
    models: dict[str, ModelEntry] = Field(default_factory=dict, description="`[models.<name>]` tables.")
    frameworks: dict[str, FrameworkEntry] = Field(default_factory=dict, description="`[frameworks.<name>]` tables.")
    tools: dict[str, str] = Field(
        default_factory=dict, description='Your own tools: `name = "package.module:tool"`, each one a Tool.'
    )

    # Workers
    queue: QueueName = Field(default=DEFAULT_QUEUE, description="Queue that a worker serves.")
    threads: int = Field(default=200, ge=1, le=1000, description="Chats a worker process runs at once.")
    processes: int = Field(default=1, ge=1, le=64, description="Worker processes.")
    lease_s: float = Field(default=15.0, gt=0, description="How long a silent worker keeps its jobs.")
    lease_renew_s: float = Field(default=5.0, gt=0, description="How often a worker renews its leases.")
    shutdown_grace_s: float = Field(
        default=25.0, ge=0, description="How long running attempts may go on after SIGTERM before they are requeued."
    )
    retry_delay_s: float = Field(
        default=2.0, ge=0, description="Pause before the second attempt, give or take a quarter."
    )
    reconcile_s: float = Field(default=1.0, gt=0, description="Pause between two passes of the reconciler.")
    metrics_port: int | None = Field(
        default=None, ge=1, le=65535, description="Port on which a worker serves the metrics of its processes; none."
    )
    metrics_host: str = Field(default="127.0.0.1", description="Address of that port.")
    breaker_failures: int = Field(
        default=5, ge=1, description="Failures in a row after which a provider and model are left alone for a while."
    )
    breaker_pause_s: float = Field(
        default=15.0,
        gt=0,
        description="How long they are left alone before one job may try; doubled by each that fails.",
    )
    breaker_longest_pause_s: float = Field(default=300.0, gt=0, description="What the doubling ends at.")
    retain_jobs_s: float = Field(
        default=30 * 86_400.0,
        gt=0,
        description="How long finished, cancelled and discarded jobs are kept, with their attempts and events. "
        "Dead letters stay until someone has decided about them; messages stay with their session.",
    )

    # Events and the gateway
    event_ttl_live_s: float = Field(default=86_400.0, gt=0, description="How long the event log of a live job is kept.")
    event_ttl_ended_s: float = Field(default=3_600.0, gt=0, description="The same once the job has ended.")
    heartbeat_s: float = Field(
        default=15.0, gt=0, description="Pause between two heartbeat comments on an event stream."
    )
    idle_check_s: float = Field(
        default=5.0, gt=0, description="How often the gateway asks SQL about jobs whose streams are silent."
    )
    request_max_bytes: int = Field(default=REQUEST_MAX_BYTES, ge=1024, description="Largest request body accepted.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # load_settings merges the file into the arguments where the environment is silent.
        return init_settings, env_settings

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("frameworks")
    @classmethod
    def _new_names(cls, value: dict[str, FrameworkEntry]) -> dict[str, FrameworkEntry]:
        for name, _ in FRAMEWORK_CHOICES:
            if name in value:
                raise ValueError(f"the name {name!r} is taken; choose another")
        return value

    @model_validator(mode="after")
    def _renew_in_time(self) -> Self:
        if self.lease_renew_s * 2 > self.lease_s:
            raise ValueError(
                "lease_renew_s must be at most half of lease_s, or leases lapse while their workers are well"
            )
        return self

    @property
    def sqlalchemy_url(self) -> str:
        """The database's address in SQLAlchemy's spelling, password included."""
        if self.database_url is None:
            return f"sqlite:///{self.data_dir / 'chatmill.db'}"
        url = self.database_url.get_secret_value()
        for short in ("postgres://", "postgresql://"):
            if url.startswith(short):
                return "postgresql+psycopg://" + url.removeprefix(short)
        return url

    @property
    def framework_choices(self) -> tuple[tuple[str, str], ...]:
        """(name, label) of every framework a session may name, the user's own included."""
        own = tuple((name, entry.label or name) for name, entry in self.frameworks.items())
        installed = tuple((name, name) for name in installed_frameworks())
        return FRAMEWORK_CHOICES + own + installed

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Every tool a job may name: the built-in ones and the user's own."""
        return (*BUILTIN_TOOLS, *self.tools)

    @property
    def has_provider(self) -> bool:
        """Whether anything but the demo model is configured."""
        return self.openai_api_key is not None or self.openai_base_url is not None

    @property
    def default_model(self) -> str:
        return self.model or (DEFAULT_OPENAI_MODEL if self.has_provider else DEMO_MODEL)

    def known_models(self) -> list[str]:
        """Names a job may use, the default first. With the demo server up, every `demo-…` is known besides."""
        names = [self.default_model, *self.models]
        if self.demo_url is not None:
            names.append(DEMO_MODEL)
        return list(dict.fromkeys(names))

    def knows_model(self, name: str) -> bool:
        return name in self.known_models() or self._is_demo(name)

    def model_target(self, name: str | None = None) -> ModelTarget:
        """Where the model `name` (or the default one) is called.

        Raises ConfigurationError if nobody knows the name or its key is missing.
        """
        name = name or self.default_model
        entry = self.models.get(name)
        if entry is not None:
            return self._entry_target(name, entry)
        if self._is_demo(name):
            return ModelTarget(name=name, model=name, base_url=self.demo_url, api_key=SecretStr("demo"))
        if name != self.default_model:
            raise ConfigurationError(f"the model {name!r} is not known; known are: {', '.join(self.known_models())}")
        if not self.has_provider:
            raise ConfigurationError(
                "no model is configured: set OPENAI_API_KEY or OPENAI_BASE_URL, or run `chatmill up` for the demo model"
            )
        # A local server often wants no key, but the client library insists on one.
        key = self.openai_api_key or SecretStr("none")
        return ModelTarget(name=name, model=name, base_url=self.openai_base_url, api_key=key)

    def _is_demo(self, name: str) -> bool:
        return self.demo_url is not None and (name == DEMO_MODEL or name.startswith(DEMO_PREFIX))

    def _entry_target(self, name: str, entry: ModelEntry) -> ModelTarget:
        base_url = entry.base_url or self.openai_base_url
        key = os.environ.get(entry.api_key_env)
        if not key and entry.api_key_env == environment_name("openai_api_key") and self.openai_api_key is not None:
            key = self.openai_api_key.get_secret_value()  # from the file
        if not key and base_url is None:
            raise ConfigurationError(f"the model {name!r} needs a key in the variable {entry.api_key_env}")
        return ModelTarget(
            name=name,
            model=entry.model or name,
            base_url=base_url,
            api_key=SecretStr(key or "none"),
            profile=entry.profile,
            context_window=entry.context_window,
        )


def environment_name(setting: str) -> str:
    """The environment variable of a setting."""
    alias = Settings.model_fields[setting].validation_alias
    if isinstance(alias, AliasChoices):
        return str(alias.choices[0])
    return f"CHATMILL_{setting}".upper()


def load_settings(config: Path | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings: `overrides` first, then the environment, then the file at `config` or `chatmill.toml` here.

    Raises ConfigurationError with the setting's name and the reason.
    """
    named = config or os.environ.get(environment_name("config"))
    path = Path(named or CONFIG_FILE).absolute()
    values: dict[str, Any] = {}
    if named or path.is_file():
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigurationError(f"there is no file {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"{path} is not valid TOML: {error}") from None
        unknown = sorted(set(values) - set(Settings.model_fields) | {"config"} & set(values))
        if unknown:
            raise ConfigurationError(f"{path}: unknown setting {unknown[0]!r}")
        values["config"] = path
    # Like pydantic-settings, which reads variables in any case.
    in_environment = {name.upper() for name, value in os.environ.items() if value}
    from_file = {name: value for name, value in values.items() if environment_name(name) not in in_environment}
    try:
        return Settings(**{**from_file, "config": values.get("config"), **(overrides or {})})
    except SettingsError as error:
        raise ConfigurationError(f"the environment is wrong: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(
            f"the setting {name or 'lease_renew_s'} is wrong: {first['msg'].removeprefix('Value error, ')}"
        ) from None
