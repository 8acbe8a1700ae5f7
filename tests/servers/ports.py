"""Loopback ports for servers that may go away and come back on the same one."""

import contextlib
import random
import socket

LOOPBACK = "127.0.0.1"
# Below the range that Linux and macOS take outgoing ports from: a client that polls a dead port of that range can
# connect to itself, and the server could never come back there.
_PORTS = range(21_000, 32_000)


def free_port() -> int:
    """Return a loopback port that nobody listens on at this moment; another process may still be quicker."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port
