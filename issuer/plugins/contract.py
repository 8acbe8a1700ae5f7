"""Contract of plugins: hooks around every call for numbers. A hook that is not overridden does nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """A call for numbers, as plugins receive it.

    Attributes:
        tag: Name of the tag.
        n: How many numbers are requested. 1 for `next`.
        strategy: Name of the tag's strategy.
        shard_key: Shard key of the call, or None.
        key: Idempotency key of the call, or None.
    """

    tag: str
    n: int = 1
    strategy: str = "segment"
    shard_key: str | bytes | None = None
    key: str | None = None


class Registered:
    """Settings of a plugin. Set them in the class, or pass `order` and `strategies` for one instance.

    Attributes:
        order: Position among plugins, a whole number. The plugin with the lowest order has its `before` called first
            and its `after` called last.
        strategies: Names of the strategies whose calls the plugin surrounds. None: all. `connect` rejects unknown
            names.
        transforms: True: `after` may return another number.
    """

    order: int = 0
    strategies: Collection[str] | None = None
    transforms: bool = False

    def __init__(self, *, order: int | None = None, strategies: Collection[str] | None = None) -> None:
        if order is not None:
            self.order = order
        if strategies is not None:
            self.strategies = strategies


class Plugin(Registered):
    """Base class of plugins for both interfaces. Hooks run in any thread, several at once.

    In an event loop hooks must not block. If a hook raises an error, the error is logged and passed to `on_error`, and
    the call continues as if the plugin did not exist. `after` describes one exception, for plugins that transform
    numbers. KeyboardInterrupt and similar exceptions are not caught.
    """

    def before(self, call: Call) -> bool | None:
        """Accept or reject a call before numbers are drawn.

        Return False, or raise Refused with a reason, to reject the call. The caller then receives Refused, and later
        plugins are not called. After True, None or another error the call continues.

        Args:
            call: The call for numbers.
        """

    def after(self, call: Call, number: int) -> int | None:
        """Process a number that was drawn. Return None to leave it unchanged.

        With `transforms = True` the hook may return another number, 0..2^63-1. The mapping must be one-to-one and the
        same in every process that draws from the tag. If two numbers are mapped to one, it is issued twice, and nothing
        detects that. If the hook fails, the number is a gap and the caller receives TransformFailed.

        Args:
            call: The call for numbers.
            number: The number drawn, as changed by plugins before this one.
        """

    def on_error(self, call: Call, error: Exception) -> None:
        """Handle an error that a hook of this plugin raised, or its invalid result.

        Args:
            call: The call for numbers.
            error: The error.
        """


class AsyncPlugin(Registered):
    """Base class of plugins whose hooks are coroutines, for asyncio. They mean the same as those of Plugin.

    If a task is cancelled while a hook runs, the numbers it had drawn are a gap.
    """

    async def before(self, call: Call) -> bool | None:
        """Accept or reject a call before numbers are drawn; see Plugin.before.

        Args:
            call: The call for numbers.
        """

    async def after(self, call: Call, number: int) -> int | None:
        """Process a number that was drawn; see Plugin.after.

        Args:
            call: The call for numbers.
            number: The number drawn, as changed by plugins before this one.
        """

    async def on_error(self, call: Call, error: Exception) -> None:
        """Handle an error of this plugin; see Plugin.on_error.

        Args:
            call: The call for numbers.
            error: The error.
        """
