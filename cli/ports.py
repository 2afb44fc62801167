"""TCP ports of this machine's loopback address."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A port nobody holds at this moment. Somebody else may take it first: whoever binds it must be ready to lose."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def check_port(port: int) -> None:
    """Raise OSError if `port` cannot be listened on."""
    with socket.socket() as probe:
        probe.settimeout(1)
        # macOS lets a socket bind the loopback address although another one listens on all addresses.
        if probe.connect_ex((LOOPBACK, port)) == 0:
            raise OSError("another program answers on it")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
