"""Finding what a setting names as `package.module:attribute`."""

from __future__ import annotations

import importlib
from typing import Any

from schemas.errors import ConfigurationError


def load_object(path: str, *, setting: str) -> Any:
    """The object at `package.module:attribute`; `setting` is what the message names as the place to correct.

    Raises ConfigurationError, in one line that says what to do, if there is no such thing or importing it fails.
    """
    module_name, colon, attribute = path.partition(":")
    if not (colon and module_name and attribute):
        raise ConfigurationError(f"{setting}: {path!r} is not of the form package.module:name; write it with a colon")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{setting}: {path!r} cannot be imported: there is no module {error.name!r}; "
            "put it beside chatmill.toml or install it"
        ) from error
    except Exception as error:
        raise ConfigurationError(
            f"{setting}: importing {module_name!r} failed with {type(error).__name__}: {error}; correct that module"
        ) from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigurationError(
                f"{setting}: {module_name!r} has no {attribute!r}; correct the part after the colon"
            ) from None
    return found
