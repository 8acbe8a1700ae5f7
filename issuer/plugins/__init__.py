"""Plugins: hooks around every call for numbers. Pass them to `connect(plugins=[...])`."""

from issuer.errors import Refused, TransformFailed
from issuer.plugins.chain import AsyncChain, Chain
from issuer.plugins.contract import AsyncPlugin, Call, Plugin

__all__ = [
    "AsyncChain",
    "AsyncPlugin",
    "Call",
    "Chain",
    "Plugin",
    "Refused",
    "TransformFailed",
]
