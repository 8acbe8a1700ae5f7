"""What must be true of the numbers that were issued, whoever issued them."""

import heapq
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple


class Draw(NamedTuple):
    """A number, and when the call that returned it began and ended, on one clock for all processes of a machine."""

    number: int
    began: float
    ended: float


def drawn(call: Callable[[], int]) -> Draw:
    """Make the call and note when. CLOCK_MONOTONIC is the same in every process."""
    began = time.monotonic()
    number = call()
    return Draw(number, began, time.monotonic())


async def awaited(call: Callable[[], Awaitable[int]]) -> Draw:
    """Do what `drawn` does, for a call of a task."""
    began = time.monotonic()
    number = await call()
    return Draw(number, began, time.monotonic())


def repeats(numbers: Iterable[int]) -> list[int]:
    """Return the numbers that came more than once."""
    return sorted(number for number, times in Counter(numbers).items() if times > 1)


def assert_increasing(numbers: list[int]) -> None:
    assert repeats(numbers) == []
    assert numbers == sorted(numbers)


def order_violations(draws: Iterable[Draw]) -> list[tuple[int, int]]:
    """Return pairs (higher, lower) where the call that got `higher` had returned before the other one began.

    Calls that overlap in time may come in any order: strict means no more, and no less, than this.
    """
    ended: list[tuple[float, int]] = []
    highest = 0
    violations = []
    for draw in sorted(draws, key=lambda one: one.began):
        while ended and ended[0][0] < draw.began:
            highest = max(highest, heapq.heappop(ended)[1])
        if draw.number < highest:
            violations.append((highest, draw.number))
        heapq.heappush(ended, (draw.ended, draw.number))
    return violations


def crashes(log: str) -> list[str]:
    """Return the exceptions whose tracebacks are in a log, without those of a store that was too slow."""
    ended = re.findall(r"^Traceback .*?^([\w.]+)(?::|$)", log, re.MULTILINE | re.DOTALL)
    return [kind for kind in ended if not kind.endswith("StoreUnavailable")]
