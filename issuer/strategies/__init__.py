"""Strategies: how the numbers of a tag are made, where the counter is not what is wanted.

`contract` is what one is, `registry` knows them by name, `serving` runs one for a tag, under both drivers. `snowflake`
makes numbers of time, machine and sequence: `layout` puts them together, `machines` says which machine number is ours.
"""

from issuer.strategies.contract import Context, Instance, Strategy
from issuer.strategies.layout import Layout, Parts
from issuer.strategies.registry import make, register, strategy_names
from issuer.strategies.serving import StrategyRunner
from issuer.strategies.snowflake import Snowflake

__all__ = [
    "Context",
    "Instance",
    "Layout",
    "Parts",
    "Snowflake",
    "Strategy",
    "StrategyRunner",
    "make",
    "register",
    "strategy_names",
]
