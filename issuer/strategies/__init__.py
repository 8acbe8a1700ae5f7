"""Strategies without a counter: classes that compute the numbers of a tag. The strategy `segment` is the counter.

`contract` contains the base class. `registry` finds strategies by name. `serving` runs a strategy for a tag, for both
interfaces. `snowflake` makes numbers from time, machine and sequence.
"""

from issuer.instance import Instance
from issuer.strategies.contract import Context, Strategy
from issuer.strategies.registry import make, register, strategy_names
from issuer.strategies.serving import StrategyRunner
from issuer.strategies.snowflake.layout import Layout, Parts
from issuer.strategies.snowflake.strategy import Snowflake

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
