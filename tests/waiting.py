"""Waiting for a condition with a deadline: the only place in the tests that may sleep."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

from issuer_persistence.clock import monotonic

T = TypeVar("T")

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05
#: How long what is waited for may take on a machine that others keep busy, and that stands still now and then.
_PATIENCE = 60.0


def run(main: Coroutine[Any, Any, T], timeout: float = _PATIENCE) -> T:
    """Run it in a loop of its own, as `asyncio.run` does; the test fails if it takes longer than that."""

    async def bounded() -> T:
        async with asyncio.timeout(timeout):
            return await main

    return asyncio.run(bounded())


def _pauses(
    condition: Callable[[], T], timeout: float, message: str, ignoring: tuple[type[Exception], ...] = ()
) -> Generator[float, None, T]:
    """Yield how long to pause before the next look, as long as it isn't true; return what it is then."""
    deadline, pause = monotonic() + timeout, _FIRST_PAUSE
    while True:
        last: object
        try:
            last = seen = condition()
        except ignoring as error:
            last = error
        else:
            if seen:
                return seen
        if monotonic() >= deadline:
            raise AssertionError(f"not within {timeout} s: {message or condition}; last seen: {last!r}")
        pause = min(pause * 1.5, _LONGEST_PAUSE)
        yield pause


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
    pauses = _pauses(condition, timeout, message, ignoring)
    while True:
        try:
            time.sleep(next(pauses))
        except StopIteration as seen:
            return cast("T", seen.value)


def ended(call: Callable[[], T], timeout: float = 30.0) -> T:
    """Return what the call returns or raises. The test fails, and leaves the call behind, if it takes longer."""
    found: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            found.append((call(), None))
        except BaseException as error:  # noqa: BLE001 - the caller's
            found.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout)
    assert found, f"{call} has not ended within {timeout:g} s"
    [(value, error)] = found
    if error is not None:
        raise error
    return cast("T", value)


async def eventually(condition: Callable[[], T], timeout: float = _PATIENCE, message: str = "") -> T:
    """Do what `until` does, for a task: the loop goes on."""
    pauses = _pauses(condition, timeout, message)
    while True:
        try:
            await asyncio.sleep(next(pauses))
        except StopIteration as seen:
            return cast("T", seen.value)
