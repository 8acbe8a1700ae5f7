"""Waiting for a condition with a deadline: the only place in the tests that may sleep."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from issuer.cli.chaos.waiting import until

__all__ = ["Heartbeat", "eventually", "run", "until"]

T = TypeVar("T")

_FIRST_PAUSE = 0.002


def run(main: Coroutine[Any, Any, T], timeout: float = 30.0) -> T:
    """Run it in a loop of its own, as `asyncio.run` does; the test fails if it takes longer than that."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout):
            return await main

    return asyncio.run(bounded())


async def eventually(condition: Callable[[], T], timeout: float = 5.0, message: str = "") -> T:
    """Do what `until` does, for a task: the loop goes on."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout} s: {message or condition}; last seen: {value!r}")
        await asyncio.sleep(_FIRST_PAUSE)
    return value


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
