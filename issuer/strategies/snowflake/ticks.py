"""The hot path of snowflake numbers: a clock, a tenure, and the numbers of the present millisecond."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from issuer.errors import ConfigurationError
from issuer.reentry import CallLock
from issuer.strategies.snowflake.layout import Layout
from issuer.strategies.snowflake.machines import Clock, Tenure
from issuer.times import utc

#: The answer of `turn` when there is no tenure, or it is over.
OVER = -1

_NS = 1_000_000

#: A millisecond as it is served: its first ns, the ns after its last, and its numbers that are left.
_Moment = tuple[int, int, Iterator[int]]


def _nothing() -> _Moment:
    return 0, 0, iter(())


class Ticks:
    """Makes numbers, for any number of threads, without a lock but once a millisecond.

    A moment is replaced by one assignment, and an iterator in C gives each of its numbers once. So a thread that was
    paused in the middle of it, for however long, gets a number of the millisecond that it has seen: below the ceiling
    that was written down before, like all of that millisecond.
    """

    __slots__ = ("_closed", "_elapsed", "_layout", "_lock", "_moment", "_now", "_used", "alarmed", "tenure")

    def __init__(self, layout: Layout, clock: Clock) -> None:
        self._layout = layout
        self._now = clock.wall
        self._elapsed = clock.elapsed
        self._lock = CallLock()
        self._moment = _nothing()
        #: The last timestamp that numbers were made of, or that an earlier holder may have used; ms since 1970.
        self._used = 0
        self._closed = False
        self.tenure: Tenure | None = None
        #: Whether the alarm was raised that the clock is behind, since it last was not.
        self.alarmed = False

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        """Return a number of this millisecond; StopIteration if that can't be without waiting, or a new tenure."""
        begin, end, left = self._moment
        if begin <= self._now() < end:
            return next(left)
        if self.turn():
            raise StopIteration
        return next(self._moment[2])

    def take(self, n: int) -> list[int]:
        """Return up to n numbers of this millisecond, which are all that can be had without waiting."""
        begin, end, left = self._moment
        if not begin <= self._now() < end:
            if self.turn():
                return []
            left = self._moment[2]
        return list(islice(left, n))

    def turn(self) -> int:
        """Go on to the present millisecond. Return 0, or how many ns to wait for it, or OVER.

        More than a millisecond to wait: the clock is behind. Raises ConfigurationError outside of the layout's time.
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
                    return 0  # another thread was here
                return (used + 1) * _NS - now
            if timestamp > tenure.ceiling:
                return OVER
            layout = self._layout
            if not layout.epoch <= timestamp < layout.ends:
                raise ConfigurationError(f"the time of the clock, {utc(timestamp)}, is outside the layout: {layout}")
            base = (timestamp - layout.epoch) << layout.shift | tenure.machine << layout.sequence_bits
            self._used = timestamp
            self.alarmed = False
            # 0 is no number that is issued: the very first ms of the epoch begins at 1 on machine 0.
            numbers = iter(range(base or 1, base + (1 << layout.sequence_bits)))
            self._moment = timestamp * _NS, (timestamp + 1) * _NS, numbers
            return 0

    # ------------------------------------------------------------------ tenures

    @property
    def fresh(self) -> bool:
        """Whether no number was made yet of a time above the tenure's floor."""
        tenure = self.tenure
        return tenure is not None and self._used == tenure.floor

    def begin(self, tenure: Tenure) -> bool:
        """Make numbers under this tenure from now on; False if it is too late for that."""
        with self._lock.thread, self._lock.call():
            if self._closed:
                return False
            before = self.tenure
            if before is None or before.machine != tenure.machine:
                # Numbers of one process rise on any machine number: only the time can see to that.
                self._moment = _nothing()
            self._used = max(self._used, tenure.floor)
            self.tenure = tenure
            return True

    def drop(self) -> None:
        """Make no more numbers: the tenure is lost."""
        with self._lock.thread, self._lock.call():
            self.tenure = None
            self._moment = _nothing()

    def close(self) -> tuple[Tenure | None, int]:
        """Make no more numbers, ever. Returns the tenure and the last timestamp used."""
        with self._lock.thread, self._lock.call():
            self._closed = True
            tenure, self.tenure = self.tenure, None
            self._moment = _nothing()
            return tenure, self._used

    def after_fork(self) -> None:
        """In a forked child: make no more numbers, which would be the parent's too."""
        self._lock = CallLock()  # the parent's may be held by a thread that the child doesn't have
        self.close()
