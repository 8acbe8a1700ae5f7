"""Waiting for a condition with a deadline: the only place in the tests that may sleep."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05
#: How long what is waited for may take on a machine that others keep busy, and that stands still now and then.
_PATIENCE = 30.0


def run(main: Coroutine[Any, Any, T], timeout: float = 30.0) -> T:
    """Run it in a loop of its own, as `asyncio.run` does; the test fails if it takes longer than that."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout):
            return await main

    return asyncio.run(bounded())


class _Wait(Generic[T]):
    """Looks at a condition; `seen`: what it was at the last look. `pause`: seconds until the next one."""

    seen: T

    def __init__(
        self, condition: Callable[[], T], timeout: float, message: str, ignoring: tuple[type[Exception], ...] = ()
    ) -> None:
        self._condition = condition
        self._ignoring = ignoring
        self._deadline = time.monotonic() + timeout
        self._failure = f"not within {timeout} s: {message or condition}; last seen: "
        self.pause = _FIRST_PAUSE

    def over(self) -> bool:
        """Return whether it has become true. Raises AssertionError once the time is over."""
        last: object
        try:
            self.seen = last = self._condition()
        except self._ignoring as error:
            last = error
        else:
            if self.seen:
                return True
        if time.monotonic() >= self._deadline:
            raise AssertionError(f"{self._failure}{last!r}")
        self.pause = min(self.pause * 1.5, _LONGEST_PAUSE)
        return False


def until(
    condition: Callable[[], T],
    timeout: float = _PATIENCE,
    message: str = "",
    ignoring: tuple[type[Exception], ...] = (),
) -> T:
    """Call `condition` until it returns something true, and return that.

    An exception of a type in `ignoring` counts as "not yet"; any other one ends the wait at once. After `timeout`
    seconds AssertionError is raised, with `message` and what was last seen.
    """
    wait = _Wait(condition, timeout, message, ignoring)
    while True:
        if wait.over():
            return wait.seen
        time.sleep(wait.pause)


async def eventually(condition: Callable[[], T], timeout: float = _PATIENCE, message: str = "") -> T:
    """Do what `until` does, for a task: the loop goes on."""
    wait = _Wait(condition, timeout, message)
    while True:
        if wait.over():
            return wait.seen
        await asyncio.sleep(wait.pause)


class Heartbeat:
    """A task that wakes every 5 ms as long as the block lasts. `longest`: how long the loop kept it waiting."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def _beat(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(0.005)
            now = time.monotonic()
            self.longest = max(self.longest, now - last)
            last = now

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._beat())
        await asyncio.sleep(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.sleep(0.01)  # a gap that has just begun counts too
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
