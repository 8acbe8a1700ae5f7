"""The numbers that a process holds in its own memory, and where `next(tag)` finds them. No I/O."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from operator import length_hint
from typing import Generic, Protocol, TypeVar

from issuer.core.arithmetic import mark
from issuer.errors import CalledWithin
from issuer.forks import under_way
from issuer.reentry import CallLock

#: One piece in use and one in reserve: a process that is killed loses these at most.
BUFFERS = 2

#: Most numbers that are laid open at once. Between two layings-open there is time to look at the clock and at the mark,
#: so this bounds what a process that was paused issues before it does; of a number's 80 ns, 1 is for that.
OPEN = 4096

#: Whether one step of an iterator in C can be taken by one thread only: under the GIL, not in a free-threaded Python.
_ATOMIC = getattr(sys, "_is_gil_enabled", lambda: True)()


class Range(Protocol):
    """A range of numbers that this process alone owns: low+1 .. high."""

    @property
    def low(self) -> int:
        """The number before the first."""

    @property
    def high(self) -> int:
        """The last number."""


P = TypeVar("P", bound=Range)

#: The pieces held, oldest first; the last number that left the first of them, taken or laid open; its mark; what is
#: laid open; the highest number issued before what is laid open. A plain tuple: a named one takes 0.5 us more to make.
_State = tuple[tuple[P, ...], int, int, Iterator[int], int]

_NOTHING: Iterator[int] = iter(())

_Range = type(iter(range(0))), type(iter(range(2**63)))


class Place:
    """A caller's place in the row of those that found the buffer empty, and the range that was put aside for it."""

    __slots__ = ("n", "taken")

    def __init__(self, n: int) -> None:
        """`n`: how many numbers the caller wants."""
        self.n = n
        self.taken: tuple[int, int] | None = None


def spend(numbers: Iterator[int]) -> list[int]:
    """Take all that is left of an open range; a stream that still holds it finds it empty. One step under the GIL."""
    return list(numbers)


class FastPath:
    """Per tag the iterator that `next(tag)` consumes: open numbers of the local buffer, or draws of the tag's combiner.

    `numbers` is for reading, without a lock. All that writes there is here.
    """

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers: dict[str, Iterator[int]] = {}

    def lay(self, tag: str, numbers: Iterator[int]) -> None:
        """Let `next(tag)` find these."""
        self.numbers[tag] = numbers

    def withdraw(self, tag: str, only: Iterator[int] | None = None) -> None:
        """Let `next(tag)` find nothing; `only`: if these are what it would find."""
        if only is None or self.numbers.get(tag) is only:
            self.numbers.pop(tag, None)

    def withdraw_all(self) -> None:
        """Let `next` find nothing of any tag."""
        self.numbers.clear()

    def spend(self) -> None:
        """In a forked child: spend the parent's numbers too, so that no stream that still holds them issues one."""
        for numbers in list(self.numbers.values()):
            if isinstance(numbers, _Range):
                spend(numbers)
        self.numbers.clear()


class LocalBuffer(Generic[P]):
    """A double buffer of ranges. A number leaves it once.

    The next few thousand numbers are *open*: an iterator in C, put where `next(tag)` finds it without a lock, at 80 ns
    a number. It ends before the mark and at the end of a piece, so that a caller that finds it empty comes here, and
    sees to the refill.

    Each method replaces the whole state by one assignment. A KeyboardInterrupt, or a signal handler that raises, may
    come between any two bytecodes. Between two assignments it would leave `cur` in one piece and the end of another
    one, and other processes' numbers in between would be issued (seen: 2 repeats in 47 701 numbers). A draw of that
    handler, or of a finalizer, in the middle of a method is refused: it would take the same numbers.

    Callers that found it empty are served first come, first served, before anything of the next piece is laid open.
    The caller that fetches a piece goes on at once, and one that draws in a loop would take all of it each time: of 21
    tasks that shared pieces of 2, one stood still for a minute while the others had 880 numbers.
    """

    __slots__ = ("_fast_path", "_lock", "_passed", "_row", "_state", "_tag")

    def __init__(self, tag: str, fast_path: FastPath | None) -> None:
        """`fast_path`: where `next(tag)` finds open numbers; None: nothing is laid open, and each call comes here."""
        self._lock = CallLock()
        self._tag = tag
        self._fast_path = fast_path if _ATOMIC else None
        self._state: _State[P] = ((), 0, 0, _NOTHING, 0)
        #: How many numbers have left the pieces that aren't held any more. For metrics alone: an interrupt may cost
        #: some.
        self._passed = 0
        # While a caller is in it nothing is left.
        self._row: OrderedDict[Place, None] = OrderedDict()

    def take(self, n: int, place: Place | None = None) -> tuple[int, int] | None:
        """Take up to n numbers: low+1 .. high are the caller's. None if nothing is left.

        `place`: then the caller stands in the row with it, and asks again with the same one, until it calls `leave`.
        """
        with self._lock.thread, self._lock.call():
            if place is not None and place.taken is not None:
                return place.taken
            taken = self._take(n)
            if taken is None and place is not None:
                self._row[place] = None
            return taken

    def leave(self, place: Place) -> None:
        """Leave the row. What was put aside for a caller that is interrupted is a gap."""
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
                cur, at = held[0].low, mark(held[0].low, held[0].high)
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
            fast_path.lay(self._tag, shown)
        return cur, high

    def _serve_row(self) -> None:
        """Put aside what the callers in the row want, as far as it goes."""
        while self._row:
            place = next(iter(self._row))
            place.taken = self._take(place.n)
            if place.taken is None:
                return
            self._row.popitem(last=False)

    def add(self, piece: P) -> bool:
        """Keep it as the next one; False if there is no room, or it isn't above what is held or was issued."""
        with self._lock.thread, self._lock.call():
            held, cur, at, shown, issued = self._state
            passed = self._passed
            if held and self._used_up():
                passed += held[0].high - held[0].low
                held, issued = held[1:], held[0].high
                if held:
                    cur, at, shown = held[0].low, mark(held[0].low, held[0].high), _NOTHING
            if len(held) >= BUFFERS or piece.low < (held[-1].high if held else issued):
                return False
            if not held:
                cur, at, shown = piece.low, mark(piece.low, piece.high), _NOTHING
            self._state = ((*held, piece), cur, at, shown, issued)
            self._passed = passed
            self._serve_row()
            return True

    def pass_by(self, low: int, high: int) -> bool:
        """Take note that low+1 .. high, which were asked for when there was no buffer yet, are issued past it.

        False if they can't be: a later caller might get lower ones from here, or has got higher ones.
        """
        with self._lock.thread, self._lock.call():
            if self._state[0] or self._state[4] > low:
                return False
            self._state = ((), 0, 0, _NOTHING, high)
            return True

    def empty(self) -> tuple[tuple[P, ...], int]:
        """Forget everything; return what was held, oldest first, and the last number used of the first of them."""
        with self._lock.thread, self._lock.call():
            held, cur, _, shown, issued = self._state
            left = spend(shown)
            self._passed += (left[0] - 1 if left else cur) - held[0].low if held else 0
            used = left[0] - 1 if left else cur
            self._state = ((), 0, 0, _NOTHING, max(issued, used) if held and used > held[0].low else issued)
            return held, used

    def shut(self, patience: float = -1) -> None:
        """Lay nothing open any more until the next `take`, so that the next caller comes here.

        `patience`: wait that many seconds at most. Past them what lies open is a gap.
        """
        if not self._lock.thread.acquire(timeout=patience):
            spend(self._state[3])
            return
        try:
            with self._lock.call():
                held, cur, at, shown, issued = self._state
                left = spend(shown)
                used = left[0] - 1 if left else cur
                self._state = (held, used, at, _NOTHING, max(issued, used) if held and used > held[0].low else issued)
        except CalledWithin:
            spend(self._state[3])
        finally:
            self._lock.thread.release()

    def spend(self) -> None:
        """In a forked child: forget the parent's numbers. Takes no lock.

        They are left neither to a stream that has hold of what lies open, nor to a task's call that was under way, and
        goes on in the child (seen: a number twice).
        """
        *_, shown, issued = self._state
        self._state = ((), 0, 0, _NOTHING, issued)
        spend(shown)

    def close_up(self) -> None:
        """Lay nothing open from now on: its numbers are made into others first."""
        self.shut()
        self._fast_path = None

    def _used_up(self) -> bool:
        held, cur, _, shown, _ = self._state
        return cur >= held[0].high and not length_hint(shown)

    def _issued(self) -> int:
        held, cur, _, shown, issued = self._state
        return max(issued, cur - length_hint(shown)) if held and cur > held[0].low else issued

    @property
    def open(self) -> Iterator[int]:
        """The numbers that are laid open, perhaps none."""
        return self._state[3] if self._fast_path is not None else _NOTHING

    @property
    def upcoming(self) -> int | None:
        """The number that leaves it next, None if it is empty."""
        with self._lock.thread, self._lock.call():
            held, cur, _, shown, _ = self._state
            laid_open = length_hint(shown)
            if laid_open or (held and cur < held[0].high):
                return cur - laid_open + 1
            return held[1].low + 1 if len(held) > 1 else None

    @property
    def held(self) -> tuple[P, ...]:
        """The pieces held, oldest first, used up or not."""
        return self._state[0]

    @property
    def due(self) -> bool:
        """Whether the next piece should be fetched: the mark is reached, or nothing is held."""
        with self._lock.thread, self._lock.call():
            held, cur, at, _, _ = self._state
            return cur >= at and len(held) < BUFFERS

    @property
    def issued(self) -> int:
        """The highest number issued from here, 0 if none."""
        with self._lock.thread, self._lock.call():
            return self._issued()

    @property
    def count(self) -> int:
        """How many numbers have left it so far."""
        with self._lock.thread, self._lock.call():
            held, cur, _, shown, _ = self._state
            return self._passed + (cur - length_hint(shown) - held[0].low if held else 0)

    @property
    def left(self) -> int:
        """How many numbers it holds."""
        with self._lock.thread, self._lock.call():
            held, cur, _, shown, _ = self._state
            return sum(each.high - each.low for each in held) - (cur - length_hint(shown) - held[0].low) if held else 0

    @property
    def highest(self) -> int:
        """The highest number issued or held."""
        held, _, _, _, issued = self._state
        return held[-1].high if held else issued
