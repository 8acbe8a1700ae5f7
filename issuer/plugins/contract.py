"""The contract of plugins: hooks around every call for numbers, of which each does nothing until it is overridden."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """A call for numbers, as plugins see it.

    `n`: how many are wanted, 1 for `next`. `strategy`: the name of the tag's strategy. `shard_key`, `key`: what the
    caller gave, None where nothing was.
    """

    tag: str
    n: int = 1
    strategy: str = "segment"
    shard_key: str | bytes | None = None
    key: str | None = None


class Registered:
    """The registration of a plugin of either colour, as a chain reads it.

    order: a whole number; smaller ones come first: their `before` is the first, their `after` the last to run.
    strategies: the names of those that it surrounds, None: all; `connect` refuses a name that isn't registered.
    transforms: whether its `after` may return another number. All three may be set in the class, or given for one
    instance; None means what the class says.
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
    """Surrounds calls for numbers. Any thread may run its hooks, several at once; in an event loop they must not block.

    What a hook raises is logged and given to the plugin's own `on_error`; the call goes on as if the hook had not been
    there. The one exception is a plugin that transforms, see `after`. KeyboardInterrupt and the like pass through.
    """

    def before(self, call: Call) -> bool | None:
        """Run before anything is drawn. False refuses the call: Refused is raised, no later plugin is asked.

        So does Refused, raised in here to give a reason. True, None or an exception: the call goes on.
        """

    def after(self, call: Call, number: int) -> int | None:
        """Run for each number that was drawn; return None to leave it as it is.

        A plugin that says `transforms = True` may return another one, 0..2^63-1. It has to be one to one and always the
        same, in every process that draws from the tag: two numbers that become one are a repeat, and nothing can tell.
        If it fails, no caller gets the number and TransformFailed is raised, as the number unchanged may be what
        another one becomes.
        """

    def on_error(self, call: Call, error: Exception) -> None:
        """Run when a hook of this plugin has failed with that error, or returned what it may not."""


class AsyncPlugin(Registered):
    """A Plugin whose hooks are coroutines, for asyncio. They mean the same and raise the same.

    A task that is cancelled while a hook runs gets no number; what it had drawn is a gap.
    """

    async def before(self, call: Call) -> bool | None:
        """Run before anything is drawn; see Plugin.before."""

    async def after(self, call: Call, number: int) -> int | None:
        """Run for each number that was drawn; see Plugin.after."""

    async def on_error(self, call: Call, error: Exception) -> None:
        """Run when a hook of this plugin has failed; see Plugin.on_error."""
