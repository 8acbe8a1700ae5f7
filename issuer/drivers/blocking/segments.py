"""The segments that a process holds for itself: the one in use and the next. In memory only; no I/O."""

from __future__ import annotations

import threading

from issuer.core.arithmetic import mark
from persistence.records import Reservation

#: One segment in use and one in reserve: what a process that is killed loses at most.
BUFFERS = 2


class Segments:
    """A double buffer of reservations. Each method is atomic, and a number leaves it once."""

    __slots__ = ("_cur", "_held", "_lock", "_mark", "issued")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[Reservation] = []
        self._cur = 0
        self._mark = 0
        #: The highest number issued from here, 0 if none.
        self.issued = 0

    def take(self, n: int) -> tuple[int, int] | None:
        """Take up to n numbers: low+1 .. high are the caller's. None if nothing is left."""
        with self._lock:
            while self._held:
                low, end = self._cur, self._held[0].high
                if low < end:
                    self._cur = self.issued = high = min(low + n, end)
                    return low, high
                self._held.pop(0)
                self._begin()
            return None

    def add(self, reservation: Reservation) -> bool:
        """Keep it as the next segment; False if there is no room, or it isn't above what is held."""
        with self._lock:
            if self._held and self._cur >= self._held[0].high:
                self._held.pop(0)
                self._begin()
            if len(self._held) >= BUFFERS or reservation.low < self._highest():
                return False
            self._held.append(reservation)
            if len(self._held) == 1:
                self._begin()
            return True

    def empty(self) -> tuple[list[Reservation], int]:
        """Forget everything; return what was held, oldest first, and the last number used of the first of them."""
        with self._lock:
            held, used = [one for one in self._held if one.high > self._cur], self._cur
            self._held = []
            return held, used

    @property
    def due(self) -> bool:
        """Whether the next segment should be reserved: the mark is reached, or nothing is held."""
        return not self._held or (len(self._held) == 1 and self._cur >= self._mark)

    @property
    def seen(self) -> int:
        """The highest number issued or held."""
        with self._lock:
            return self._highest()

    def _highest(self) -> int:
        return self._held[-1].high if self._held else self.issued

    def _begin(self) -> None:
        if self._held:
            self._cur, high = self._held[0].low, self._held[0].high
            self._mark = mark(self._cur, high)
