"""Plugins: hooks around every call for numbers. Pass them to `connect(plugins=[...])`."""

from issuer.errors import Refused, TransformFailed
from issuer.plugins.chain import AsyncChain, Chain
from issuer.plugins.contract import AsyncPlugin, Call, Plugin
from issuer.plugins.history import History, Record, noted
from issuer.plugins.rate import Rate, Rates
from issuer.plugins.rejected import Handler, Logged, Rejections
from issuer.plugins.scrambling import Scrambler, Scrambles

__all__ = [
    "AsyncChain",
    "AsyncPlugin",
    "Call",
    "Chain",
    "Handler",
    "History",
    "Logged",
    "Plugin",
    "Rate",
    "Rates",
    "Record",
    "Refused",
    "Rejections",
    "Scrambler",
    "Scrambles",
    "TransformFailed",
    "noted",
]
