"""The options before the command, and what follows from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cli.failure import WrongUsage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import typer

    from cli.client import Client
    from schemas.settings import Settings

#: What a service next to a running `up` takes over from it.
ADDRESSES = ("redis_url", "database_url", "demo_url")


@dataclass(frozen=True, slots=True)
class Options:
    """`--url`, `--config` and `--tenant`; None where they are not given.

    Settings and HTTP are loaded when a command asks for them: together they take half a second.
    """

    url: str | None = None
    config: Path | None = None
    tenant: str | None = None

    def settings(self) -> Settings:
        """The settings. Raises ConfigurationError."""
        from schemas.settings import load_settings

        return load_settings(self.config)

    def service_settings(self, given: Mapping[str, Any] | None = None) -> tuple[Settings, str | None]:
        """The settings of a service, and a sentence if its addresses are those of a running `up`.

        `given` is what the command line says. The addresses are taken over together or not at all: its Redis with
        another database would ring for unknown jobs. Raises ConfigurationError.
        """
        from schemas.settings import environment_name, load_settings

        settings = load_settings(self.config, given)
        if settings.model_fields_set & {"redis_url", "database_url"}:
            return settings, None
        run = running_up(settings.data_dir)
        missing = {name: run[name] for name in ADDRESSES if name in run and name not in settings.model_fields_set}
        if not missing:
            return settings, None
        # The processes that a worker starts read the settings anew: there they find them too.
        os.environ.update({environment_name(name): address for name, address in missing.items()})
        source = f"using Redis and the database of the running `chatmill up` (process {run['pid']})"
        return load_settings(self.config, given), source

    def gateway_url(self) -> str:
        """`--url`, else CHATMILL_URL or `url` in chatmill.toml, else a running `up`'s, else the default port here."""
        if url := self.url or os.environ.get("CHATMILL_URL"):
            return url
        settings = self.settings()
        if settings.url:
            return settings.url
        running: str | None = running_up(settings.data_dir).get("url")
        return running or f"http://127.0.0.1:{settings.port or 8080}"

    def client(self) -> Client:
        """A client of the gateway. Raises WrongUsage for an address that is none."""
        from cli.client import Client

        return Client(self.gateway_url(), self.tenant)


def running_up(data_dir: Path) -> dict[str, Any]:
    """What the run file of a data folder says; empty if the `up` that wrote it is gone."""
    from cli.data_folder import DataFolder

    run = DataFolder(data_dir).read_run()
    return run if _is_alive(run.get("pid")) else {}


def _is_alive(pid: Any) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, so it lives
    return True


def lists(context: typer.Context, *given: object) -> bool:
    """Whether a group's own list is asked for, and not a command below it.

    Raises WrongUsage if an option of the list stands before such a command, which would not see it.
    """
    if context.invoked_subcommand is None:
        return True
    if any(given):
        raise WrongUsage(f"options go behind the command: chatmill {context.info_name} {context.invoked_subcommand} …")
    return False


def checked_id(text: str, what: str) -> str:
    """An id from the command line in its canonical form. Raises WrongUsage."""
    from schemas.ids import canonical_id

    try:
        return canonical_id(text)
    except ValueError:
        raise WrongUsage(f"{text!r} is not the id of a {what}: ids are UUIDs") from None
