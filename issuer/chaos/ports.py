"""Loopback ports for servers that stop and start again on the same port."""

from __future__ import annotations

import contextlib
import random
import socket

LOOPBACK = "127.0.0.1"
# These ports are below those that Linux and macOS use for outgoing connections. If a server used a port of outgoing
# connections, a client that polls the port while the server is down could connect to itself. Then the server could not
# listen on this port again.
_PORTS = range(31_000, 32_700)


def free_port() -> int:
    """Return a loopback port that is free now. Another process may still take it first."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 - no secret
        if is_free(port):
            return port


def is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind((LOOPBACK, port))
        return True
    return False
