"""Who may speak to a gateway without keys: programs on this machine, and pages that the gateway itself has served.

A page from elsewhere can make a browser send requests here, and can give this machine's address a name of its own.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from gateway.problems import Forbidden


def check_origin(scope: Scope) -> None:
    """Raise Forbidden for a request by another name than this machine's, or from a page of somebody else's."""
    headers = Headers(scope=scope)
    host, port = _split("//" + headers.get("host", ""))
    if not is_loopback(host):
        raise Forbidden("the gateway answers to localhost and loopback addresses only", field="host")
    origin = headers.get("origin")
    if origin is None and "sec-fetch-site" not in headers:
        return
    server = scope.get("server")
    own_port = server[1] if server else None
    if port != own_port:
        raise Forbidden("a browser must speak to the gateway at its own port", field="host")
    if origin is not None:
        origin_host, origin_port = _split(origin)
        if not is_loopback(origin_host) or origin_port != own_port:
            raise Forbidden("a page from another place may not use this gateway", field="origin")


def is_loopback(host: str) -> bool:
    """Whether a host, as a name or an address without brackets, can only be this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        name = host.lower().removesuffix(".")
        return name == "localhost" or name.endswith(".localhost")


def _split(address: str) -> tuple[str, int | None]:
    """Host and port of `//host:port` or `http://host:port`; an empty host for what is neither."""
    try:
        parts = urlsplit(address)
        default = 443 if parts.scheme == "https" else 80
        return parts.hostname or "", parts.port or default
    except ValueError:
        return "", None
