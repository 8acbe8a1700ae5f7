"""Loopback ports for servers that stop and start again on the same port."""

from __future__ import annotations

import contextlib
import random
import socket

LOOPBACK = "127.0.0.1"
# Below the ports that Linux and macOS use for outgoing connections. A client that polls a dead port of that range can
# connect to itself, and then the server could never listen there again.
_PORTS = range(31_000, 32_700)


def free_port() -> int:
    """Return a loopback port that is free now. Another process may still take it first."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 - no secret
        if is_free(port):
            return port


def is_free(port: int) -> bool:
    """Return whether the port is free now."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind((LOOPBACK, port))
        return True
    return False
