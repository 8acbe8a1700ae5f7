"""The hot path of Snowflake numbers: it combines the clock, the machine number and a sequence for each millisecond."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import shuffle

from issuer.errors import ConfigurationError
from issuer.reentry import CallLock
from issuer.strategies.snowflake.layout import Layout
from issuer.strategies.snowflake.machines import Clock, Tenure
from issuer.times import utc

#: Result of `turn` if this process has no machine number, or its lease has expired.
OVER = -1

_NS = 1_000_000

#: Count of sequence numbers with which a millisecond can begin, at most. To shuffle so many takes 1 ms.
FIRSTS = 2048

#: A millisecond: its first nanosecond, the first nanosecond after it, and an iterator over its remaining numbers.
_Moment = tuple[int, int, Iterator[int]]


def _nothing() -> _Moment:
    return 0, 0, iter(())


class Ticks:
    """Makes the numbers of all threads of a process. A lock is taken only once per millisecond.

    One assignment replaces the current millisecond and the iterator over its numbers. The iterator is written in C, so
    two threads never get the same number from it. A paused thread can still take a number of an old millisecond. This
    is safe: the machine number was reserved for that time.
    """

    __slots__ = ("_closed", "_elapsed", "_firsts", "_layout", "_lock", "_moment", "_now", "_used", "alarmed", "tenure")

    def __init__(self, layout: Layout, clock: Clock) -> None:
        self._layout = layout
        self._now = clock.wall
        self._elapsed = clock.elapsed
        self._lock = CallLock()
        self._moment = _nothing()
        #: The first sequence numbers of the next milliseconds, the next one last.
        self._firsts: list[int] = []
        #: The last timestamp used, by this process or by an earlier holder of the machine number, in ms since 1970.
        self._used = 0
        self._closed = False
        self.tenure: Tenure | None = None
        #: True after an alarm was raised because the clock is behind, until the clock has caught up.
        self.alarmed = False

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        """Return a number of the current millisecond. If there is none, or no machine number, raise StopIteration."""
        begin, end, left = self._moment
        if begin <= self._now() < end:
            return next(left)
        if self.turn():
            raise StopIteration
        return next(self._moment[2])

    def take(self, n: int) -> list[int]:
        begin, end, left = self._moment
        if not begin <= self._now() < end:
            if self.turn():
                return []
            left = self._moment[2]
        return list(islice(left, n))

    def turn(self) -> int:
        """Advance to the current millisecond. Return 0 if numbers of this millisecond are left.

        If none is left, return how many nanoseconds the caller must wait. A wait longer than a millisecond means that
        the clock is behind. If there is no valid machine number, return OVER. Raises ConfigurationError if the layout
        cannot represent the time.
        """
        with self._lock.thread, self._lock.call():
            tenure = self.tenure
            if tenure is None or self._elapsed() >= tenure.until:
                return OVER
            now = self._now()
            timestamp = now // _NS
            used = self._used
            if timestamp <= used:
                begin, _, left = self._moment
                if begin == timestamp * _NS == used * _NS and left.__length_hint__():  # type: ignore[attr-defined]  # a range's
                    return 0  # another thread has advanced to this millisecond
                return (used + 1) * _NS - now
            if timestamp > tenure.ceiling:
                return OVER
            layout = self._layout
            if not layout.epoch <= timestamp < layout.ends:
                raise ConfigurationError(f"the time of the clock, {utc(timestamp)}, is outside the layout: {layout}")
            base = (timestamp - layout.epoch) << layout.shift | tenure.machine << layout.sequence_bits
            self._used = timestamp
            self.alarmed = False
            # 0 is not a valid number, so the first ms of the epoch starts at 1 on machine 0.
            numbers = iter(range(base + self._first() or 1, base + (1 << layout.sequence_bits)))
            self._moment = timestamp * _NS, (timestamp + 1) * _NS, numbers
            return 0

    def _first(self) -> int:
        """Return the first sequence number of a millisecond. At least half of the sequence numbers are left.

        At low rates, most milliseconds have one number. If each began with 0, all numbers would be divisible by 4096:
        a program that chooses a partition by `number % 8` would use one partition. So the lower half of the sequence
        numbers is used evenly: each once, in random order, before one is used again.
        """
        if not self._firsts:
            self._firsts = list(range(min(FIRSTS, 1 << self._layout.sequence_bits - 1)))
            shuffle(self._firsts)
        return self._firsts.pop()

    # ------------------------------------------------------------------ tenures

    @property
    def fresh(self) -> bool:
        """Whether no number was made yet with the current machine number."""
        tenure = self.tenure
        return tenure is not None and self._used == tenure.floor

    def begin(self, tenure: Tenure) -> bool:
        """Use this machine number from now on. Return False if `close` was already called."""
        with self._lock.thread, self._lock.call():
            if self._closed:
                return False
            before = self.tenure
            if before is None or before.machine != tenure.machine:
                # Drop the rest of the millisecond: it has numbers of the old machine number. Even if the new machine
                # number is lower, numbers increase, because their timestamps do.
                self._moment = _nothing()
            self._used = max(self._used, tenure.floor)
            self.tenure = tenure
            return True

    def drop(self) -> None:
        """Stop making numbers: this process no longer holds its machine number."""
        with self._lock.thread, self._lock.call():
            self.tenure = None
            self._moment = _nothing()

    def close(self) -> tuple[Tenure | None, int]:
        """Stop making numbers for ever. Return the machine number's tenure and the last timestamp used."""
        with self._lock.thread, self._lock.call():
            self._closed = True
            tenure, self.tenure = self.tenure, None
            self._moment = _nothing()
            return tenure, self._used

    def after_fork(self) -> None:
        """Stop making numbers in a forked child, as the parent makes the same numbers."""
        self._lock = CallLock()  # the lock may be held by a thread of the parent
        self.close()
