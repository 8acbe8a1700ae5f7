"""The plugins of an issuer, sorted by order: Chain for the blocking interface, AsyncChain for asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import ClassVar, Generic, TypeVar

from issuer.core.sparing import Sparing
from issuer.errors import ConfigurationError, brief
from issuer.plugins.contract import AsyncPlugin, Call, Plugin
from issuer.plugins.hooks import Draw, Surroundings, named
from issuer.threads import finished

P = TypeVar("P", bound=Plugin | AsyncPlugin)


class Plugins(Generic[P]):
    """Base class of Chain and AsyncChain. A chain without plugins is false."""

    #: Makes what the plugins get to know of a call.
    call = Call
    _kinds: ClassVar[tuple[type, ...]]
    _tasks: ClassVar[bool]

    def __init__(self, plugins: Iterable[P] = ()) -> None:
        ordered = list(plugins)
        for plugin in ordered:
            _check(plugin, self._kinds)
        if len({id(plugin) for plugin in ordered}) < len(ordered):
            raise ConfigurationError("a plugin is registered twice, so its hooks would run twice for each number")
        #: The plugins, sorted by their `order`. Plugins with the same `order` run in the order in which they were
        #: given.
        self.plugins = sorted(ordered, key=lambda plugin: plugin.order)
        self._sparing = Sparing()
        self._by_strategy: dict[str, Surroundings] = {}

    def __bool__(self) -> bool:
        return bool(self.plugins)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(map(named, self.plugins)) or 'empty'}>"

    @property
    def strategies(self) -> frozenset[str]:
        """The names of all strategies in the `strategies` of the plugins."""
        return frozenset(name for plugin in self.plugins for name in plugin.strategies or ())

    def changes(self, strategy: str) -> bool:
        """Return True if a plugin may change the numbers of that strategy."""
        return self.surroundings(strategy).changes

    def surroundings(self, strategy: str) -> Surroundings:
        """Return what runs the hooks of the plugins for that strategy."""
        found = self._by_strategy.get(strategy)
        if found is None:
            theirs = [each for each in self.plugins if each.strategies is None or strategy in each.strategies]
            found = self._by_strategy[strategy] = Surroundings(theirs, self._sparing, tasks=self._tasks)
        return found


class Chain(Plugins[Plugin]):
    """Plugins of an Issuer. Threads can share the chain. Its plugins cannot be changed after its creation.

    Raises:
        ConfigurationError: An object is not a Plugin, is an AsyncPlugin, or is registered twice.
    """

    _kinds = (Plugin,)
    _tasks = False

    def around(self, call: Call, draw: Callable[[], list[int]]) -> list[int]:
        """Call `before` of each plugin, then `draw`, then `after` of each plugin. Return the resulting numbers.

        If `draw` fails after it has drawn some numbers, `after` is called for these numbers. The error's attribute
        `drawn` contains them.

        Raises:
            Refused: A plugin rejected the call. `draw` was not called.
            TransformFailed: A plugin that changes numbers failed.
        """

        async def drawn() -> list[int]:
            return draw()

        return finished(lambda: self.surroundings(call.strategy).around(call, drawn))

    def before(self, call: Call) -> None:
        """Call `before` of each plugin. Raises Refused if a plugin rejects the call."""
        finished(lambda: self.surroundings(call.strategy).before(call))

    def after(self, call: Call, numbers: Iterable[int]) -> list[int]:
        """Call `after` of each plugin, and return the resulting numbers. Raises TransformFailed."""
        return finished(lambda: self.surroundings(call.strategy).after(call, numbers))


class AsyncChain(Plugins[Plugin | AsyncPlugin]):
    """Plugins of an AsyncIssuer: Plugin and AsyncPlugin. The methods are those of Chain, as coroutines.

    Raises:
        ConfigurationError: An object is not a plugin, or is registered twice.
    """

    _kinds = (Plugin, AsyncPlugin)
    _tasks = True

    async def around(self, call: Call, draw: Draw) -> list[int]:
        """Run the plugins around a draw, and return the resulting numbers; see Chain.around."""
        return await self.surroundings(call.strategy).around(call, draw)

    async def before(self, call: Call) -> None:
        """Call `before` of each plugin. Raises Refused if a plugin rejects the call."""
        await self.surroundings(call.strategy).before(call)

    async def after(self, call: Call, numbers: Iterable[int]) -> list[int]:
        """Call `after` of each plugin, and return the resulting numbers. Raises TransformFailed."""
        return await self.surroundings(call.strategy).after(call, numbers)


def _check(plugin: object, kinds: tuple[type, ...]) -> None:
    """Raise ConfigurationError if the plugin is invalid, or not of one of these kinds."""
    if isinstance(plugin, type):
        raise ConfigurationError(f"{plugin.__name__} is a class: register an instance of it")
    if not isinstance(plugin, (Plugin, AsyncPlugin)):
        raise ConfigurationError(
            f"{brief(plugin)} is not a plugin: it must be an instance of a subclass of issuer.plugins.Plugin"
        )
    name, awaited = named(plugin), isinstance(plugin, AsyncPlugin)
    if not isinstance(plugin, kinds):
        raise ConfigurationError(f"{name} is an AsyncPlugin, which only an AsyncIssuer can use")
    for hook in ("before", "after", "on_error"):
        if inspect.iscoroutinefunction(getattr(plugin, hook)) != awaited:
            kind, other = ("AsyncPlugin", "def") if awaited else ("Plugin", "async def")
            raise ConfigurationError(f"{name} is of class {kind}, but its {hook} is an `{other}`")
    order: object = plugin.order
    if not isinstance(order, int) or isinstance(order, bool):
        raise ConfigurationError(f"{name}.order must be a whole number, not {brief(order)}")
    names: object = plugin.strategies
    if names is not None and not _are_names(names):
        raise ConfigurationError(f"{name}.strategies must be names, as in ('segment',), or None, not {brief(names)}")


def _are_names(names: object) -> bool:
    if not isinstance(names, Collection) or isinstance(names, (str, bytes)):
        return False  # a text would be a collection of names of one character
    return all(isinstance(name, str) for name in names)
