"""Runs hooks around a draw. The code is the same for threads and for asyncio.

The methods are coroutines. A coroutine waits only for a hook, a draw or other tasks. If the hooks and the draw block,
the coroutine never waits. So any thread can run it, without an event loop; see `issuer.threads.finished`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, cast

from issuer.core.sparing import Sparing
from issuer.errors import ConfigurationError, IssuerError, Refused, TransformFailed, brief
from issuer.interrupts import raise_interrupt
from issuer.plugins.contract import AsyncPlugin, Call, Plugin
from issuer_persistence.records import HIGHEST

#: A function that draws the numbers of a call, in a thread or a task.
Draw = Callable[[], Awaitable[list[int]]]

#: After every 100 numbers of a call, other tasks of the event loop can run.
TURN_EVERY = 100

log = logging.getLogger("issuer.plugins")


class Hook(NamedTuple):
    """A method of a plugin. `awaited`: whether it is a coroutine function."""

    plugin: Plugin | AsyncPlugin
    run: Callable[..., Any]
    awaited: bool


class Surroundings:
    """Runs the hooks of plugins before and after draws. Each object serves the tags with one strategy."""

    def __init__(self, plugins: Iterable[Plugin | AsyncPlugin], sparing: Sparing, *, tasks: bool) -> None:
        """`plugins`: the plugins for the strategy, in their order. `tasks`: whether they run in an event loop.

        `sparing`: logs errors of hooks, but not every repetition.
        """
        surrounding = list(plugins)
        self._befores = [hook for plugin in surrounding if (hook := _overridden(plugin, "before")) is not None]
        self._afters = [hook for plugin in reversed(surrounding) if (hook := _overridden(plugin, "after")) is not None]
        self._changing = ", ".join(named(hook.plugin) for hook in self._afters if hook.plugin.transforms)
        self._sparing = sparing
        self._tasks = tasks

    @property
    def changes(self) -> bool:
        """Whether a plugin may change numbers."""
        return bool(self._changing)

    async def around(self, call: Call, draw: Draw) -> list[int]:
        """See Chain.around."""
        if self._befores:
            await self.before(call)
        try:
            numbers = await draw()
        except IssuerError as error:
            # The caller receives these numbers with the error. So they must be transformed, too: otherwise one of them
            # could be equal to the transformed value of another number.
            if error.drawn:
                error.drawn = (await self._changed(call, error.drawn))[0]
            raise
        return await self.after(call, numbers) if self._afters else numbers

    async def before(self, call: Call) -> None:
        """Call `before` of each plugin. Raises Refused."""
        for hook in self._befores:
            try:
                answer = hook.run(call)
                if hook.awaited:
                    answer = await answer
                refused = answer is not None and not answer
            except Refused as error:
                error.plugin = error.plugin or named(hook.plugin)
                raise
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is, the call goes on
                await self._failed(hook.plugin, "before", call, error)
            else:
                if refused:
                    raise Refused(call.tag, plugin=named(hook.plugin))

    async def after(self, call: Call, numbers: Iterable[int]) -> list[int]:
        """Call `after` of each plugin for each number. Return the resulting numbers. Raises TransformFailed."""
        given, lost = await self._changed(call, numbers)
        if lost:
            failed = TransformFailed(call.tag, plugin=self._changing, numbers=lost)
            failed.drawn = given
            raise failed
        return given

    async def _changed(self, call: Call, numbers: Iterable[int]) -> tuple[list[int], list[int]]:
        """Call `after` of each plugin for each number. Return the resulting numbers, and the drawn ones that are lost.

        A drawn number is lost if a plugin that changes numbers fails, or if another number has the same result.
        """
        given: list[int] = []
        lost: list[int] = []
        seen: set[int] | None = set() if self._changing else None
        for turn, drawn in enumerate(numbers, 1):
            if self._tasks and turn % TURN_EVERY == 0:
                await asyncio.sleep(0)
            number: int | None = drawn
            for hook in self._afters:
                try:
                    answer = hook.run(call, number)
                    if hook.awaited:
                        answer = await answer
                    if answer is not None:
                        number = _checked(hook.plugin, number, answer)
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - nothing may lose the number
                    await self._failed(hook.plugin, "after", call, error)
                    if hook.plugin.transforms:
                        number = None
                        break
            if number is None or (seen is not None and number in seen):
                lost.append(drawn)
                continue
            if seen is not None:
                seen.add(number)
            given.append(number)
        return given, lost

    async def _failed(self, plugin: Plugin | AsyncPlugin, where: str, call: Call, error: BaseException) -> None:
        """Log the error of the hook `where`, and call `on_error`. Raises the error if it cancels or ends the caller."""
        raised = _own(plugin, error)
        self._complain(plugin, where, call, raised)
        try:
            answer: object = plugin.on_error(call, raised)
            if isinstance(plugin, AsyncPlugin):
                await cast("Awaitable[None]", answer)
        except (Exception, asyncio.CancelledError) as another:  # noqa: BLE001 - whatever it is, the call goes on
            self._complain(plugin, "on_error", call, _own(plugin, another))

    def _complain(self, plugin: Plugin | AsyncPlugin, where: str, call: Call, error: Exception) -> None:
        kind = (id(plugin), where, type(error))
        told = "tag %r: plugin %s: %s failed"
        self._sparing.say(log.error, call.tag, kind, told, call.tag, named(plugin), where, error=error)


def named(plugin: Plugin | AsyncPlugin) -> str:
    """Return the name of the plugin's class."""
    return type(plugin).__name__


def _overridden(plugin: Plugin | AsyncPlugin, name: str) -> Hook | None:
    """Return the hook of that name. None if the plugin does not override it."""
    run: Callable[..., Any] = getattr(plugin, name)
    awaited = isinstance(plugin, AsyncPlugin)
    if getattr(run, "__func__", None) is getattr(AsyncPlugin if awaited else Plugin, name):
        return None
    return Hook(plugin, run, awaited)


def _checked(plugin: Plugin | AsyncPlugin, number: object, answer: object) -> int:
    """Return `answer`, the result of `after`. Raises ValueError or ConfigurationError if it is not allowed."""
    if not isinstance(answer, int) or isinstance(answer, bool) or not 0 <= answer <= HIGHEST:
        raise ValueError(
            f"`after` of {named(plugin)} returned {brief(answer)}, which is not a whole number 0..{HIGHEST}"
        )
    if answer != number and not plugin.transforms:
        raise ConfigurationError(f"{named(plugin)} returned another number, which requires transforms = True")
    return answer


def _own(plugin: Plugin | AsyncPlugin, error: BaseException) -> Exception:
    """Return a hook's error, for the log and for `on_error`: the call continues.

    Raises the error instead if it cancels the caller, or comes from a signal handler: then the call ends.
    """
    if isinstance(error, Exception):
        raise_interrupt(error)
        return error
    with suppress(RuntimeError):  # no event loop is running, so the caller cannot be cancelled
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
    # The plugin waited for something that was cancelled. The caller is not cancelled, so it must get its number.
    own = RuntimeError(f"something that {named(plugin)} waited for was cancelled")
    own.__cause__ = error
    return own
