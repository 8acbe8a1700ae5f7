"""Loopback ports for servers that may go away and come back on the same one."""

from __future__ import annotations

import contextlib
import random
import socket

LOOPBACK = "127.0.0.1"
# Below the range that Linux and macOS take outgoing ports from: a client that polls a dead port of that range can
# connect to itself, and the server could never come back there.
_PORTS = range(31_000, 32_700)


def free_port() -> int:
    """Return a loopback port that no process listens on at this moment; another one may still be quicker."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 - no secret
        if is_free(port):
            return port


def is_free(port: int) -> bool:
    """Return whether the port can be listened on at this moment."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind((LOOPBACK, port))
        return True
    return False
