"""Does the gateway answer, and has it all that it needs?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2

from cli.check import TIMEOUT_S, Check, without_password
from cli.loopback import is_loopback_url

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "gateway"
_PARTS = ("redis", "database", "migrations")


async def check_gateway(url: str) -> list[Check]:
    """Asks the gateway at `url` whether it is ready."""
    shown = without_password(url)
    try:
        async with httpx2.AsyncClient(timeout=TIMEOUT_S, trust_env=not is_loopback_url(url)) as http:
            response = await http.get(f"{url.rstrip('/')}/readyz")
            body = response.json()
            return [_judge(shown, body)]
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        remedy = "start `chatmill up` or `chatmill gateway`, or name its address with --url or CHATMILL_URL"
        return [Check.wrong(NAME, f"nobody answers at {shown} ({error or type(error).__name__})", remedy)]
    except (ValueError, TypeError, KeyError):
        remedy = "name the gateway's address with --url or CHATMILL_URL"
        return [Check.wrong(NAME, f"what answers at {shown} is not chatmill", remedy)]


def _judge(shown: str, body: Mapping[str, Any]) -> Check:
    if body["ready"]:
        return Check.ok(NAME, f"{shown} is ready")
    missing = [f"{part} {body[part]['detail']}" for part in _PARTS if not body[part]["ready"]]
    return Check.wrong(NAME, f"{shown} is not ready: {'; '.join(missing)}", "see its log")
