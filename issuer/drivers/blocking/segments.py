"""The segments that a process holds for itself: the one in use and the next. In memory only; no I/O."""

from __future__ import annotations

import threading

from issuer.core.arithmetic import mark
from persistence.records import Reservation

#: One segment in use and one in reserve: what a process that is killed loses at most.
BUFFERS = 2

#: What is held, oldest first; the last number used of the first of them; its mark; the highest number issued, or 0.
#: A plain tuple: making a named one takes 0.5 us more, of 2 that a number costs in all.
_State = tuple[tuple[Reservation, ...], int, int, int]


def _from(held: tuple[Reservation, ...], issued: int) -> _State:
    """Return the state in which nothing of the first segment is used."""
    if not held:
        return (), 0, 0, issued
    return held, held[0].low, mark(held[0].low, held[0].high), issued


class Segments:
    """A double buffer of reservations. A number leaves it once.

    Each method replaces the whole state by one assignment. A KeyboardInterrupt, or a signal handler that raises, may
    come between any two bytecodes: in between two assignments it would leave `cur` in one segment and the end of
    another one, and the numbers of somebody else in between would be issued (seen: 2 repeats in 47 701 numbers).
    Don't draw in a signal handler: it would wait for the lock that the code it interrupted holds.
    """

    __slots__ = ("_lock", "_state")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = _from((), 0)

    def take(self, n: int) -> tuple[int, int] | None:
        """Take up to n numbers: low+1 .. high are the caller's. None if nothing is left."""
        with self._lock:
            held, low, at, _ = self._current()
            if not held:
                return None
            high = min(low + n, held[0].high)
            self._state = (held, high, at, high)
            return low, high

    def add(self, reservation: Reservation) -> bool:
        """Keep it as the next segment; False if there is no room, or it isn't above what is held or was issued."""
        with self._lock:
            held, cur, at, issued = self._current()
            if len(held) >= BUFFERS or reservation.low < (held[-1].high if held else issued):
                return False
            self._state = ((*held, reservation), cur, at, issued) if held else _from((reservation,), issued)
            return True

    def empty(self) -> tuple[tuple[Reservation, ...], int]:
        """Forget everything; return what was held, oldest first, and the last number used of the first of them."""
        with self._lock:
            held, cur, _, issued = self._current()
            self._state = _from((), issued)
            return held, cur

    def _current(self) -> _State:
        """Return the state, moved on to the next segment if the first one is used up."""
        state = self._state
        held, cur, _, issued = state
        return _from(held[1:], issued) if held and cur >= held[0].high else state

    @property
    def due(self) -> bool:
        """Whether the next segment should be reserved: the mark is reached, or nothing is held."""
        held, cur, at, _ = self._state
        return cur >= at and (len(held) < BUFFERS or cur >= held[0].high)

    @property
    def holds(self) -> bool:
        """Whether there is a segment in hand, used up or not."""
        return bool(self._state[0])

    @property
    def issued(self) -> int:
        """The highest number issued from here, 0 if none."""
        return self._state[3]

    @property
    def highest(self) -> int:
        """The highest number issued or held."""
        held, _, _, issued = self._state
        return held[-1].high if held else issued
