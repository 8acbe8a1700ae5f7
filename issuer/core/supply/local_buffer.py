"""Numbers in the memory of this process, and the place where `next(tag)` finds them. No I/O."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import length_hint
from typing import Generic, Protocol, TypeVar

from issuer.errors import CalledWithin
from issuer.forks import under_way
from issuer.reentry import CallLock
from issuer_persistence.holding import acquired
from issuer_persistence.records import DEFAULT_REFILL_AT, LEASE_MOST, Tag

#: Ranges in a buffer: one in use, and the next one. A process that is killed loses at most these two.
BUFFERS = 2

#: If a stream uses up a lease in less than QUICK seconds, the next lease is twice as large. If a lease lasts longer
#: than SLOW, the next one is half as large. If the process is killed, the rest of the lease is a gap.
QUICK, SLOW = 0.05, 1.0

#: Maximum count of numbers that are published for `next` at once. A process that was paused may issue all of them
#: before it checks the clock and the threshold. To issue a number takes 80 ns, including 1 ns for the publishing.
OPEN = 4096

#: Whether a step of a C iterator is atomic: True with the GIL, False in a free-threaded Python.
_ATOMIC = getattr(sys, "_is_gil_enabled", lambda: True)()


def threshold(low: int, high: int, refill_at: float = DEFAULT_REFILL_AT) -> int:
    """Return the threshold, low + ceil(size x refill_at). The draw of this number triggers the next load.

    `refill_at`: share above 0 and below 1, rounded to 0.001. Computed with integers: a float times a size above
    2^53 would not be exact.
    """
    return low + -(-(high - low) * round(refill_at * 1000) // 1000)


def share_at_refill(record: Tag, size: int, per_second: float | None) -> float:
    """Return the share of a range that is used when the next range is fetched: `refill_at`, or less.

    It is less if the rest of the range must last for an outage of `survive` seconds, a setting of the tag. If even the
    whole range is too small for that, the share is 0.001.

    Args:
        record: The tag's record.
        size: Numbers of the range.
        per_second: Rate of use. None if it is unknown.
    """
    needed = (per_second or 0) * record.survive
    return record.refill_at if needed == 0 else max(0.001, min(record.refill_at, 1 - needed / size))


def stream_lease(before: int, lasted: float, *, least: int, segment: int) -> int:
    """Return the size of a stream's next lease. The last lease had `before` numbers and lasted `lasted` seconds.

    The size is `least` or more, up to a fifth of a segment. Larger leases would use up a segment before the next one is
    loaded. `segment`: size of a segment.
    """
    most = max(least, min(LEASE_MOST, segment // 5))
    wanted = before * 2 if lasted < QUICK else before // 2 if lasted > SLOW else before
    return min(most, max(least, wanted))


class Range(Protocol):
    """A range of numbers that only this process may issue: low+1 .. high."""

    @property
    def low(self) -> int:
        """The number before the first one of the range."""

    @property
    def high(self) -> int:
        """The last number."""


P = TypeVar("P", bound=Range)

#: The state of a buffer: (held, cur, at, shown, issued). `held`: ranges, oldest first. `cur`: last number of the first
#: range that was taken or published. `at`: threshold of the first range. `shown`: iterator over the published numbers.
#: `issued`: highest number issued before them. This is a plain tuple: creating a named one would take 0.5 us longer.
_State = tuple[tuple[P, ...], int, int, Iterator[int], int]

_NOTHING: Iterator[int] = iter(())

_Range = type(iter(range(0))), type(iter(range(2**63)))


class Place:
    """A caller's place in the queue for an empty buffer, and the numbers that were set aside for the caller."""

    __slots__ = ("n", "taken")

    def __init__(self, n: int) -> None:
        self.n = n
        self.taken: tuple[int, int] | None = None


def unused(held: Iterable[Range], used: int) -> int:
    """Return how many numbers of these ranges are above `used`, the last number used."""
    return sum(max(0, each.high - max(used, each.low)) for each in held)


def take_all(numbers: Iterator[int]) -> list[int]:
    """Take all numbers left in the iterator: a stream that uses it, too, gets none of them. Atomic with the GIL."""
    return list(numbers)


class FastPath:
    """For each tag, the iterator from which `next(tag)` takes numbers.

    The iterator contains published numbers of the local buffer, or draws each number from Redis. `numbers` may be read
    by all, without a lock. Only this class writes to it.
    """

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers: dict[str, Iterator[int]] = {}

    def publish(self, tag: str, numbers: Iterator[int]) -> None:
        """Let `next(tag)` take its numbers from this iterator."""
        self.numbers[tag] = numbers

    def unpublish(self, tag: str, only: Iterator[int] | None = None) -> None:
        """Unpublish the tag's numbers. If `only` is given, do this only if it is the iterator that is published."""
        if only is None or self.numbers.get(tag) is only:
            self.numbers.pop(tag, None)

    def unpublish_all(self) -> None:
        """Unpublish the numbers of all tags."""
        self.numbers.clear()

    def discard(self) -> None:
        """In a forked child: discard the parent's numbers. Streams that use the same iterators get none, either."""
        for numbers in list(self.numbers.values()):
            if isinstance(numbers, _Range):
                take_all(numbers)
        self.numbers.clear()


class LocalBuffer(Generic[P]):
    """A double buffer of ranges. Each number is taken from it once.

    `take` publishes the next few thousand numbers: it puts them into a C iterator. `next(tag)` takes numbers from this
    iterator without a lock, in 80 ns each. The iterator ends before the threshold, the number at which the next range
    must be fetched, or at the end of the range. The caller that finds it empty calls `take` again.

    Each method replaces the whole state by one assignment, as a KeyboardInterrupt or a signal handler's error can occur
    between any two bytecodes. If it occurred between two assignments, the position of one range would be combined with
    the end of another, and numbers of other processes would be issued (seen: 2 repeats in 47 701 numbers). If a signal
    handler or finalizer draws during a method, it gets an error. Otherwise it would take the same numbers.

    Callers of an empty buffer are served in the order of arrival, before a new range is published. Otherwise the caller
    that fetches the ranges could take all of them in a loop: of 21 tasks that shared ranges of 2 numbers, one waited
    for a minute while the others got 880 numbers.
    """

    __slots__ = ("_fast_path", "_lock", "_passed", "_row", "_state", "_tag", "refill_at")

    def __init__(self, tag: str, fast_path: FastPath | None) -> None:
        """`fast_path`: where numbers are published. None: nothing is published, and each call uses `take`."""
        self._lock = CallLock()
        self._tag = tag
        #: Share of a range that is used when the next one is fetched. A change applies only to later ranges.
        self.refill_at = DEFAULT_REFILL_AT
        self._fast_path = fast_path if _ATOMIC else None
        self._state: _State[P] = ((), 0, 0, _NOTHING, 0)
        #: How many numbers were issued from dropped ranges. Only for metrics: an interrupt can make it too low.
        self._passed = 0
        # The queue of callers, in the order of arrival. While a caller is queued, the buffer is empty.
        self._row: OrderedDict[Place, None] = OrderedDict()

    def take(self, n: int, place: Place | None = None) -> tuple[int, int] | None:
        """Take up to n numbers: low+1 .. high. None if the buffer is empty.

        `place`: the caller's place in the queue. If the result is None, the caller waits, and calls `take` again with
        the same place. At the end it calls `leave`.
        """
        with self._lock.thread, self._lock.call():
            if place is not None and place.taken is not None:
                return place.taken
            taken = self._take(n)
            if taken is None and place is not None:
                self._row[place] = None
            return taken

    def leave(self, place: Place) -> None:
        """Leave the queue. If a caller was interrupted before it took the numbers set aside for it, they are a gap."""
        with self._lock.thread, self._lock.call():
            self._row.pop(place, None)

    def _take(self, n: int) -> tuple[int, int] | None:
        held, cur, at, shown, _ = self._state
        numbers = list(islice(shown, n))
        if numbers:
            return numbers[0] - 1, numbers[-1]
        if held and cur >= held[0].high:
            self._passed += held[0].high - held[0].low
            held = held[1:]
            if held:
                cur, at = held[0].low, self._threshold(held[0])
        if not held:
            self._state = ((), 0, 0, _NOTHING, self._issued())
            return None
        high = min(cur + n, held[0].high)
        end = high
        fast_path = None if under_way() or len(self._row) > 1 else self._fast_path
        if fast_path is not None:
            end = min(high + OPEN, at - 1 if high < at else held[0].high)
            shown = iter(range(high + 1, end + 1))
        self._state = (held, end, at, shown, high)
        if fast_path is not None:
            fast_path.publish(self._tag, shown)
        return cur, high

    def _serve_row(self) -> None:
        while self._row:
            place = next(iter(self._row))
            place.taken = self._take(place.n)
            if place.taken is None:
                return
            self._row.popitem(last=False)

    def add(self, piece: P) -> bool:
        """Append the range. False if the buffer is full, or if the range is not above all numbers held or issued."""
        with self._lock.thread, self._lock.call():
            held, cur, at, shown, issued = self._state
            passed = self._passed
            if held and self._used_up():
                passed += held[0].high - held[0].low
                held, issued = held[1:], held[0].high
                if held:
                    cur, at, shown = held[0].low, self._threshold(held[0]), _NOTHING
            if len(held) >= BUFFERS or piece.low < (held[-1].high if held else issued):
                return False
            if not held:
                cur, at, shown = piece.low, self._threshold(piece), _NOTHING
            self._state = ((*held, piece), cur, at, shown, issued)
            self._passed = passed
            self._serve_row()
            return True

    def issue_outside(self, low: int, high: int) -> bool:
        """Record that low+1 .. high are issued. These numbers were drawn from Redis before the buffer existed.

        Returns False if they must not be issued, because the buffer holds numbers or has issued higher ones: callers
        could get a lower number after a higher one.
        """
        with self._lock.thread, self._lock.call():
            if self._state[0] or self._state[4] > low:
                return False
            self._state = ((), 0, 0, _NOTHING, high)
            return True

    def empty(self) -> tuple[tuple[P, ...], int]:
        """Drop all ranges. Returns them, oldest first, and the last number that was issued from the first of them.

        If no number of the first range was issued, this is the number before the range.
        """
        with self._lock.thread, self._lock.call():
            held, cur, _, shown, issued = self._state
            left = take_all(shown)
            self._passed += (left[0] - 1 if left else cur) - held[0].low if held else 0
            used = left[0] - 1 if left else cur
            self._state = ((), 0, 0, _NOTHING, max(issued, used) if held and used > held[0].low else issued)
            return held, used

    def unpublish(self, patience: float = -1) -> None:
        """Make `next` find no published numbers until the next `take`.

        If the lock is not free after `patience` seconds, the published numbers become a gap. -1: wait without limit.
        """
        locks: list[threading.RLock] = []
        try:
            if not acquired(self._lock.thread, patience, locks):
                take_all(self._state[3])
                return
            with self._lock.call():
                held, cur, at, shown, issued = self._state
                left = take_all(shown)
                used = left[0] - 1 if left else cur
                self._state = (held, used, at, _NOTHING, max(issued, used) if held and used > held[0].low else issued)
        except CalledWithin:
            take_all(self._state[3])
        finally:
            for each in locks:
                each.release()

    def discard(self) -> None:
        """In a forked child: drop the parent's published numbers, without a lock.

        Otherwise a stream that uses the published iterator could issue a number a second time (seen). All other calls
        that continue in the child are refused.
        """
        take_all(self._state[3])

    def stop_publishing(self) -> None:
        """Publish no numbers for `next` from now on: the tag has a scheme, which must convert each number first."""
        self.unpublish()
        self._fast_path = None

    def _threshold(self, piece: P) -> int:
        return threshold(piece.low, piece.high, self.refill_at)

    def _used_up(self) -> bool:
        held, cur, _, shown, _ = self._state
        return cur >= held[0].high and not length_hint(shown)

    def _issued(self) -> int:
        held, cur, _, shown, issued = self._state
        return max(issued, cur - length_hint(shown)) if held and cur > held[0].low else issued

    @property
    def open(self) -> Iterator[int]:
        """The iterator from which `next` takes numbers without a lock. The iterator may be exhausted."""
        return self._state[3] if self._fast_path is not None else _NOTHING

    @property
    def upcoming(self) -> int | None:
        """The number that is issued next. None if the buffer is empty."""
        with self._lock.thread, self._lock.call():
            held, cur, _, shown, _ = self._state
            laid_open = length_hint(shown)
            if laid_open or (held and cur < held[0].high):
                return cur - laid_open + 1
            return held[1].low + 1 if len(held) > 1 else None

    @property
    def held(self) -> tuple[P, ...]:
        """The ranges, oldest first, including used ranges."""
        return self._state[0]

    @property
    def due(self) -> bool:
        """Whether the next range should be fetched: the threshold is reached, or the buffer is empty."""
        with self._lock.thread, self._lock.call():
            held, cur, at, _, _ = self._state
            return cur >= at and len(held) < BUFFERS

    @property
    def issued(self) -> int:
        """The highest number issued from the buffer. 0 if no number was issued."""
        with self._lock.thread, self._lock.call():
            return self._issued()

    @property
    def count(self) -> int:
        """How many numbers were issued from the buffer so far."""
        with self._lock.thread, self._lock.call():
            held, cur, _, shown, _ = self._state
            return self._passed + (cur - length_hint(shown) - held[0].low if held else 0)

    @property
    def left(self) -> int:
        """How many unused numbers the buffer has."""
        with self._lock.thread, self._lock.call():
            held, cur, _, shown, _ = self._state
            return sum(each.high - each.low for each in held) - (cur - length_hint(shown) - held[0].low) if held else 0

    @property
    def highest(self) -> int:
        """The highest number issued or held."""
        held, _, _, _, issued = self._state
        return held[-1].high if held else issued
