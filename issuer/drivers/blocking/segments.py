"""The segments that a process holds for itself: the one in use and the next. In memory only; no I/O."""

from __future__ import annotations

import threading
from typing import NamedTuple

from issuer.core.arithmetic import mark
from persistence.records import Reservation

#: One segment in use and one in reserve: what a process that is killed loses at most.
BUFFERS = 2


class _State(NamedTuple):
    """What is held, oldest first; the last number used of the first of them; the highest number issued, 0 if none."""

    held: tuple[Reservation, ...] = ()
    cur: int = 0
    issued: int = 0

    def moved_on(self) -> _State:
        """Return the state without a first segment that is used up."""
        if not self.held or self.cur < self.held[0].high:
            return self
        held = self.held[1:]
        return _State(held, held[0].low if held else 0, self.issued).moved_on()


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
        self._state = _State()

    def take(self, n: int) -> tuple[int, int] | None:
        """Take up to n numbers: low+1 .. high are the caller's. None if nothing is left."""
        with self._lock:
            state = self._state.moved_on()
            if not state.held:
                return None
            low = state.cur
            high = min(low + n, state.held[0].high)
            self._state = _State(state.held, high, high)
            return low, high

    def add(self, reservation: Reservation) -> bool:
        """Keep it as the next segment; False if there is no room, or it isn't above what is held or was issued."""
        with self._lock:
            state = self._state.moved_on()
            if len(state.held) >= BUFFERS or reservation.low < self._highest(state):
                return False
            cur = state.cur if state.held else reservation.low
            self._state = _State((*state.held, reservation), cur, state.issued)
            return True

    def empty(self) -> tuple[tuple[Reservation, ...], int]:
        """Forget everything; return what was held, oldest first, and the last number used of the first of them."""
        with self._lock:
            state = self._state.moved_on()
            self._state = _State(issued=state.issued)
            return state.held, state.cur

    @property
    def due(self) -> bool:
        """Whether the next segment should be reserved: the mark is reached, or nothing is held."""
        held, cur, _ = self._state.moved_on()
        return not held or (len(held) == 1 and cur >= mark(held[0].low, held[0].high))

    @property
    def issued(self) -> int:
        """The highest number issued from here, 0 if none."""
        return self._state.issued

    @property
    def highest(self) -> int:
        """The highest number issued or held."""
        return self._highest(self._state)

    @staticmethod
    def _highest(state: _State) -> int:
        return state.held[-1].high if state.held else state.issued
