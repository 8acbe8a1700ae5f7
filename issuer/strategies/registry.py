"""Finds strategies by name: built-in strategies, registered ones, and entry points of installed packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points

from issuer.core.scheme_record import SEGMENT, SNOWFLAKE
from issuer.core.steps import Steps
from issuer.errors import (
    ConfigurationError,
    InvalidArgument,
    IssuerError,
    NotDecodable,
    SchemeError,
    StrategyFailed,
    brief,
)
from issuer.instance import Instance
from issuer.interrupts import raise_interrupt
from issuer.strategies.contract import Context, Strategy
from issuer.strategies.options import Scalar
from issuer.strategies.snowflake.strategy import Snowflake
from issuer_persistence.errors import StoreError

#: The group of entry points in which packages offer strategies. An entry has the form name = "package.module:factory".
GROUP = "issuer.strategies"

#: Function that returns a strategy for one tag of one issuer. A subclass of Strategy is also a factory.
Factory = Callable[[Context], Strategy]

_BUILT_IN: dict[str, Factory] = {SEGMENT: Strategy, SNOWFLAKE: Snowflake}
_registered: dict[str, Factory] = {}


@contextmanager
def wrapped(name: str, tag: str | None = None) -> Iterator[None]:
    """Run a strategy's code. If the code raises an error that is not the issuer's, raise StrategyFailed instead.

    `tag`: name of the tag for the errors. None if there is no tag.
    """
    try:
        yield
    except StoreError:
        raise
    except IssuerError as error:
        error.tag = error.tag or tag
        raise
    except Exception as error:
        raise_interrupt(error)
        whose = "" if tag is None else f"tag {tag!r}: "
        problem = f"{whose}strategy {name!r} failed: {type(error).__name__}: {error}"
        raise StrategyFailed(problem, tag=tag, strategy=name) from error


def register(name: str, factory: Factory) -> None:
    """Register a strategy in this process. It replaces an earlier strategy of that name, for tags not yet in use.

    Args:
        name: Name of the strategy, as in `create(..., strategy=name)`.
        factory: Function that takes a Context and returns the strategy, or a subclass of Strategy.

    Raises:
        ConfigurationError: The name is empty or built in, or `factory` cannot be called.
    """
    if not name:
        raise ConfigurationError("a strategy must have a name")
    if name in _BUILT_IN:
        raise ConfigurationError(f"strategy {name!r} is built in: choose another name")
    if not callable(factory):
        raise ConfigurationError(f"strategy {name!r}: the factory must be a function of a Context, not {factory!r}")
    _registered[name] = factory


def strategy_names() -> list[str]:
    """Return the names of all known strategies."""
    return sorted({*_BUILT_IN, *_registered, *(point.name for point in entry_points(group=GROUP))})


def factory(name: object) -> Factory:
    """Return the factory of that name: a built-in one, a registered one, or an entry point. Raises SchemeError."""
    if not isinstance(name, str):
        raise SchemeError(f"must be the name of a strategy, not {brief(name)}", setting="strategy", value=name)
    found = _BUILT_IN.get(name) or _registered.get(name)
    if found is not None:
        return found
    points = entry_points(group=GROUP, name=name)
    if not points:
        problem = f"unknown strategy {brief(name)}; the strategies are {', '.join(strategy_names())}"
        raise SchemeError(problem, setting="strategy", value=name)
    try:
        loaded: Factory = next(iter(points)).load()
    except Exception as error:
        raise_interrupt(error)
        problem = f"the entry point of {name!r} can't be loaded: {error}"
        raise SchemeError(problem, setting="strategy", value=name) from error
    return loaded


def _kind(name: str) -> type[Strategy]:
    """If the factory is a function, its class is unknown: return the base class, Strategy. Raises SchemeError."""
    found = factory(name)
    return found if isinstance(found, type) and issubclass(found, Strategy) else Strategy


def check(name: str, options: Mapping[str, Scalar], tag: str | None = None) -> None:
    """Raise SchemeError if the strategy is unknown or cannot have these options. Raises StrategyFailed."""
    kind = _kind(name)
    try:
        with wrapped(name, tag):
            kind.check(options)
    except ConfigurationError as error:
        raise SchemeError(str(error), setting="options", value=dict(options), tag=tag) from error


def settled(name: str, options: Mapping[str, Scalar], instance: Instance, *, redis: bool) -> Mapping[str, Scalar]:
    """Return the options to store with a new tag of that strategy. Raises SchemeError, StrategyFailed."""
    kind = _kind(name)
    with wrapped(name):
        return kind.settled(options, instance, redis=redis)


def decode(name: str, options: Mapping[str, Scalar], value: int) -> Mapping[str, int]:
    """Return the parts that a strategy packed into a number. Raises SchemeError, NotDecodable, StrategyFailed."""
    kind = _kind(name)
    try:
        with wrapped(name):
            return kind.decode(options, value)
    except InvalidArgument as error:
        raise NotDecodable(f"{value} is not a number of {name}: {error}", value=value) from error


def holder(name: str, options: Mapping[str, Scalar], value: int, tag: str, prefix: str) -> Steps[str | None]:
    """Return the process that made a number. None if the process is unknown. Raises IssuerError."""
    kind = _kind(name)
    with wrapped(name, tag):
        return (yield from kind.holder(options, value, tag, prefix))


def make(name: str, context: Context) -> Strategy:
    """Create the strategy of that name. Raises SchemeError, ConfigurationError, StrategyFailed."""
    kind = factory(name)
    with wrapped(name, context.tag):
        made = kind(context)
    if not isinstance(made, Strategy):
        raise ConfigurationError(
            f"strategy {name!r}: its factory returned {made!r}, which is not a Strategy", tag=context.tag
        )
    return made
