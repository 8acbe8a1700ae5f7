"""A store whose authority is another issuer: its server reserves the ranges, in its own store."""

from issuer_persistence.remote.store import RemoteStore

__all__ = ["RemoteStore"]
