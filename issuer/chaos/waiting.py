"""Waits for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from issuer.clock import monotonic

T = TypeVar("T")

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05


def until(
    condition: Callable[[], T], timeout: float = 20.0, message: str = "", ignoring: tuple[type[Exception], ...] = ()
) -> T:
    """Call `condition` again and again until it returns a true value. Return this value.

    An exception of a type in `ignoring` counts as "not yet". Other exceptions end the wait. After `timeout` seconds,
    AssertionError is raised, with `message` and the last result.
    """
    deadline = monotonic() + timeout
    pause = _FIRST_PAUSE
    while True:
        last: object
        try:
            if value := condition():
                return value
            last = value
        except ignoring as error:
            last = error
        if monotonic() >= deadline:
            raise AssertionError(f"not within {timeout} s: {message or condition}; last seen: {last!r}")
        time.sleep(min(pause, max(0.0, deadline - monotonic())))
        pause = min(pause * 1.2, _LONGEST_PAUSE)
