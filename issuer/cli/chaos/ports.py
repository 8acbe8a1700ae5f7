"""Loopback ports for servers that may go away and come back on the same one."""

from __future__ import annotations

import contextlib
import random
import socket

LOOPBACK = "127.0.0.1"
# Below the range that Linux and macOS take outgoing ports from: a client that polls a dead port of that range can
# connect to itself, and the server could never come back there.
_PORTS = range(21_000, 32_000)
# A Cluster node listens on a second port, so many above the first; neither may lie in the range of outgoing ports.
_BUS_ABOVE = 10_000
_CLUSTER_PORTS = range(11_000, 21_000)


def free_port() -> int:
    """Return a loopback port that nobody listens on at this moment; another process may still be quicker."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 - no secret
        if _is_free(port):
            return port


def free_cluster_port() -> int:
    """Return a port whose Cluster bus port is free as well."""
    while True:
        port = random.choice(_CLUSTER_PORTS)  # noqa: S311 - no secret
        if _is_free(port) and _is_free(port + _BUS_ABOVE):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind((LOOPBACK, port))
        return True
    return False
