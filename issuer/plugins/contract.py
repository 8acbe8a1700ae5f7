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
        order: Position among plugins, a whole number. The `before` of plugins run from the lowest position to the
            highest, and their `after` from the highest to the lowest.
        strategies: Names of strategies. The plugin receives only calls for tags with these strategies. None means all
            strategies. `connect` rejects unknown names.
        transforms: True if `after` may return another number.
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
    """Base class of plugins for Issuer and AsyncIssuer. Hooks run in any thread, several at once.

    In an event loop, hooks must not block. If a hook raises an error, the error is logged and passed to `on_error`. The
    call then continues as if the plugin did not exist. There is one exception: if `after` of a plugin that transforms
    numbers fails, the call fails too. KeyboardInterrupt and similar exceptions are not caught.
    """

    def before(self, call: Call) -> bool | None:
        """Accept or reject a call before numbers are drawn.

        To reject the call, return False, or raise Refused with a reason. The caller then receives Refused, and the
        remaining plugins are not called. If the hook returns True or None, or raises another error, the call continues.

        Args:
            call: The call for numbers.
        """

    def after(self, call: Call, number: int) -> int | None:
        """Process a number that was drawn. Return None to leave the number unchanged.

        With `transforms = True` the hook may return another number, 0..2^63-1. The mapping must be one-to-one, and the
        same in every process that draws from the tag. If the hook maps two numbers to the same number, this number is
        issued twice. The issuer cannot detect that. If the hook fails, the number is a gap, and the caller receives
        TransformFailed.

        Args:
            call: The call for numbers.
            number: The drawn number, including the changes of plugins whose `after` ran earlier.
        """

    def on_error(self, call: Call, error: Exception) -> None:
        """Handle an error that a hook of this plugin raised, or an error about a hook's invalid result.

        Args:
            call: The call for numbers.
            error: The error.
        """


class AsyncPlugin(Registered):
    """Base class of plugins for asyncio. Its hooks are those of Plugin, as coroutines.

    If a task is cancelled while a hook runs, the numbers that the task had drawn are a gap.
    """

    async def before(self, call: Call) -> bool | None:
        """Accept or reject a call before numbers are drawn. Return False, or raise Refused, to reject it.

        Args:
            call: The call for numbers.
        """

    async def after(self, call: Call, number: int) -> int | None:
        """Process a number that was drawn. Return None to leave it unchanged, or another number as in Plugin.after.

        Args:
            call: The call for numbers.
            number: The drawn number, including the changes of plugins whose `after` ran earlier.
        """

    async def on_error(self, call: Call, error: Exception) -> None:
        """Handle an error that a hook of this plugin raised, or an error about a hook's invalid result.

        Args:
            call: The call for numbers.
            error: The error.
        """
