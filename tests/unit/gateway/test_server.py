"""Where the gateway listens, and what it says when it cannot."""

from __future__ import annotations

import socket

import pytest

from gateway.server import listen
from schemas.errors import ConfigurationError


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com", ""])
def test_only_loopback_is_listened_on(host: str) -> None:
    with pytest.raises(ConfigurationError, match="CHATMILL_HOST"):
        listen(host, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_port_0_takes_a_free_one(host: str) -> None:
    with listen(host, 0) as listening:
        assert listening.getsockname()[1] > 0


def test_a_busy_port_is_told_with_its_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port {port} \(Address already in use\).*CHATMILL_PORT"):
            listen("127.0.0.1", port)
