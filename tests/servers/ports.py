"""Loopback ports for servers that may go away and come back on the same one."""

from issuer.cli.chaos.ports import LOOPBACK, free_cluster_port, free_port

__all__ = ["LOOPBACK", "free_cluster_port", "free_port"]
