"""Rate: counts the issued numbers of each tag in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass

from issuer.clock import monotonic
from issuer.forks import living
from issuer.plugins.contract import Call, Plugin


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a tag. Numbers are always divided by the whole window, even if the tag has been in use for less time.

    Attributes:
        second: Numbers per second over the last second.
        ten_seconds: Numbers per second over the last 10 seconds.
        minute: Numbers per second over the last 60 seconds.
        total: Numbers since the plugin was created.
    """

    second: float
    ten_seconds: float
    minute: float
    total: int

    def content(self) -> dict[str, float | int]:
        """Return the attributes as a dict for JSON."""
        return asdict(self)


class _Ring:
    """Counts numbers in slices of time.

    A window can begin in the middle of a slice. So one more slice is kept, and the oldest slice counts in part.
    """

    __slots__ = ("_counts", "_slices", "_width")

    def __init__(self, width: float, longest: float) -> None:
        """`width`: duration of a slice. `longest`: duration of the longest window. Both in seconds."""
        self._width = width
        size = round(longest / width) + 1
        #: For each counter: the index of its slice of time, counted from time 0. -1: the counter is unused.
        self._slices = [-1] * size
        self._counts = [0] * size

    def add(self, now: float) -> None:
        slice_ = int(now / self._width)
        place = slice_ % len(self._counts)
        if self._slices[place] == slice_:
            self._counts[place] += 1
        else:
            self._slices[place], self._counts[place] = slice_, 1

    def rate(self, now: float, window: float) -> float:
        """Return the numbers per second in the window. The slice in which the window begins counts in part."""
        begin = (now - window) / self._width
        first, last = int(begin), int(now / self._width)
        count = 0.0
        for slice_, counted in zip(self._slices, self._counts, strict=True):
            if first < slice_ <= last:
                count += counted
            elif slice_ == first:
                count += counted * (1.0 - (begin - first))
        return count / window


class _Meter:
    """Counters of one tag."""

    __slots__ = ("_coarse", "_fine", "lock", "total")

    def __init__(self) -> None:
        #: The lock is re-entrant, because a signal handler can draw a number while this thread holds the lock.
        self.lock = threading.RLock()
        self.total = 0
        self._fine = _Ring(0.1, 1.0)
        self._coarse = _Ring(1.0, 60.0)

    def add(self, now: float) -> None:
        self.total += 1
        self._fine.add(now)
        self._coarse.add(now)

    def rates(self, now: float) -> Rates:
        return Rates(
            second=self._fine.rate(now, 1.0),
            ten_seconds=self._coarse.rate(now, 10.0),
            minute=self._coarse.rate(now, 60.0),
            total=self.total,
        )


class Rate(Plugin):
    """Plugin that counts the issued numbers of all tags. Threads can share it: each tag has its own lock.

    The window of 1 s moves in steps of 0.1 s, the windows of 10 and 60 s in steps of 1 s. Each tag takes 1.8 kB of
    memory. A forked child counts from 0.

    Args:
        order: Position among plugins. None means -1000.
        strategies: Names of strategies. Only numbers of tags with these strategies are counted. None means all.
        clock: Function that returns the time in seconds, and never goes back. None means the monotonic clock.
    """

    order = -1000

    def __init__(
        self,
        *,
        order: int | None = None,
        strategies: Collection[str] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """See the class."""
        super().__init__(order=order, strategies=strategies)
        self._clock = monotonic if clock is None else clock
        self.after_fork()
        _living.add(self)

    def after_fork(self) -> None:
        """Create new counters in a forked child, because threads of the parent may hold the locks of the old ones."""
        self._meters: dict[str, _Meter] = {}

    def after(self, call: Call, number: int) -> None:
        """Count one issued number towards the rate of its tag.

        Args:
            call: The call for numbers.
            number: The issued number. It is not used.
        """
        del number
        meter = self._meters.get(call.tag)
        if meter is None:
            meter = self._meters.setdefault(call.tag, _Meter())
        with meter.lock:
            meter.add(self._clock())

    def of(self, tag: str) -> Rates:
        """Return the rates of a tag. All rates are 0 if the tag has not issued a number yet.

        Args:
            tag: Name of the tag.
        """
        meter = self._meters.get(tag)
        if meter is None:
            return Rates(0.0, 0.0, 0.0, 0)
        with meter.lock:
            return meter.rates(self._clock())

    def all(self) -> dict[str, Rates]:
        """Return the rates of all tags that have issued a number, by name."""
        return {tag: self.of(tag) for tag in sorted(self._meters.copy())}


_living = living(Rate.after_fork)
