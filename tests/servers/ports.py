"""Loopback ports for servers that may go away and come back on the same one: no two pytest workers take the same."""

import os
import random

from issuer.chaos.ports import is_free

LOOPBACK = "127.0.0.1"
# Below the range that outgoing ports are taken from, as those of issuer.chaos are.
_PORTS = range(21_000, 32_000)
# A Cluster node listens on a second port, so many above the first; neither may lie in the range of outgoing ports.
_BUS_ABOVE = 10_000
_CLUSTER_PORTS = range(11_000, 21_000)
# Each worker takes every so-manieth port.
_WORKERS = 16
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _WORKERS


def free_port() -> int:
    """Return a port that nobody listens on at this moment."""
    while True:
        if is_free(port := random.choice(_PORTS[_WORKER::_WORKERS])):
            return port


def free_cluster_port() -> int:
    """Return a port whose Cluster bus port is free as well."""
    while True:
        port = random.choice(_CLUSTER_PORTS[_WORKER::_WORKERS])
        if is_free(port) and is_free(port + _BUS_ABOVE):
            return port
