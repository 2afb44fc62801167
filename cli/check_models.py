"""Do the models answer, and do their providers take the keys?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx2

from cli.check import TIMEOUT_S, Check, without_password
from cli.loopback import is_loopback_url
from schemas.errors import ConfigurationError
from schemas.logs import mask_secrets

if TYPE_CHECKING:
    from schemas.models import ModelTarget
    from schemas.settings import Settings

NAME = "model"
OPENAI_URL = "https://api.openai.com/v1"
KEY = "OPENAI_API_KEY, or the variable that `api_key_env` names"


async def check_models(settings: Settings) -> list[Check]:
    """Asks the provider of every model that jobs may name for its list of models, which costs nothing."""
    default, *others = settings.known_models()
    checks = [_check(settings, default, NAME), *(_check(settings, name, f"{NAME} {name}") for name in others)]
    return await asyncio.gather(*checks)


async def _check(settings: Settings, model: str, name: str) -> Check:
    try:
        target = settings.model_target(model)
    except ConfigurationError as error:
        return Check.wrong(name, str(error), f"set {KEY}, or OPENAI_BASE_URL, or use `chatmill up`")
    base_url = target.base_url or OPENAI_URL
    shown = f"{target.name} at {without_password(base_url)}"
    headers = {"authorization": f"Bearer {target.api_key.get_secret_value()}"}
    try:
        async with httpx2.AsyncClient(timeout=TIMEOUT_S, trust_env=not is_loopback_url(base_url)) as http:
            response = await http.get(f"{base_url.rstrip('/')}/models", headers=headers)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = mask_secrets(str(error)) or type(error).__name__
        return Check.wrong(name, f"{shown} does not answer ({reason})", "correct its address, or start it")
    return _judge(name, shown, target, response, demo=base_url == settings.demo_url)


def _judge(name: str, shown: str, target: ModelTarget, response: httpx2.Response, *, demo: bool) -> Check:
    if response.status_code in (401, 403):
        return Check.wrong(name, f"{shown} refuses the key (HTTP {response.status_code})", f"correct {KEY}")
    if not response.is_success:
        remedy = f"try it: `chatmill submit Hello --follow --model {target.name}`"
        return Check.warning(name, f"{shown} does not list its models (HTTP {response.status_code})", remedy)
    known = _names(response)
    if known and target.model not in known:
        some = ", ".join(sorted(known)[:5])
        remedy = "correct CHATMILL_MODEL, or `model` in its table of chatmill.toml"
        return Check.warning(name, f"{shown} is not among its models ({some}, …)", remedy)
    if demo:
        return Check.ok(name, f"{shown}: the demo, a scripted stand-in (set OPENAI_API_KEY for a real one)")
    return Check.ok(name, f"{shown} answers and takes the key")


def _names(response: httpx2.Response) -> set[str]:
    """The ids in an OpenAI-shaped list of models; none if it is shaped otherwise."""
    try:
        body: Any = response.json()
        return {str(model["id"]) for model in body["data"]}
    except (ValueError, TypeError, KeyError):
        return set()
