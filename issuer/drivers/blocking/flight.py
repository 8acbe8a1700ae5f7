"""Single flight: of all the callers in a process that need a segment of a tag, one flies and the others wait for it."""

from __future__ import annotations

import copy
import threading

from issuer.clock import Deadline, monotonic, pause
from issuer.errors import IssuerError, Unavailable


class Flight:
    """One extension under way. Waiters sleep on a lock; nobody spins.

    The locks are plain ones, in C: an interrupt inside threading.Event, which is Python, can leave its own lock held,
    and then everybody waits for ever.
    """

    __slots__ = ("_end", "_landed", "_pilot", "begun", "error", "progress")

    def __init__(self) -> None:
        self._pilot: dict[str, int] = {}
        self._end: dict[str, object] = {}
        self._landed = threading.Lock()
        self._landed.acquire()
        self.begun = monotonic()
        self.error: IssuerError | None = None
        self.progress = False

    def claim(self) -> bool:
        """Say who flies it: True for one thread. A scheduler may lose a job, and then a waiter takes it over.

        `setdefault` is one step: whoever is interrupted right after it still finds out that the flight is theirs.
        """
        return not self.landed and self._pilot.setdefault("thread", threading.get_ident()) == threading.get_ident()

    @property
    def claimed(self) -> bool:
        """Whether somebody flies it, or has."""
        return bool(self._pilot)

    @property
    def ours(self) -> bool:
        """Whether this thread has claimed it."""
        return self._pilot.get("thread") == threading.get_ident()

    def land(self, *, progress: bool, error: IssuerError | None = None) -> None:
        """End it and wake all waiters. `progress`: numbers are there now, so that asking again makes sense at once."""
        if self.landed:
            return
        self.progress = progress
        self.error = error
        mine = object()
        if self._end.setdefault("landing", mine) is mine:  # one step, so that the lock is released once
            self._landed.release()

    @property
    def landed(self) -> bool:
        """Whether it has ended."""
        return bool(self._end)

    def wait(self, seconds: float) -> bool:
        """Wait for its end, so many seconds at most; return whether it came."""
        if self.landed:
            return True
        if not self._landed.acquire(timeout=max(0.0, seconds)):
            return False
        self._landed.release()
        return True

    def verdict(self) -> IssuerError | None:
        """Return the error that asking again won't better, as a fresh exception for each waiter; else None."""
        if self.error is None or isinstance(self.error, Unavailable):
            return None
        return renewed(self.error)


class Board:
    """Where the flights of one tag depart: at most one is in the air."""

    __slots__ = ("_failed_at", "_failures", "_flight", "_lock", "_longest", "trouble")

    def __init__(self, longest: float) -> None:
        """`longest`: seconds after which a flight counts as lost with its thread, and another may depart."""
        self._lock = threading.Lock()
        self._flight: Flight | None = None
        self._longest = longest
        self._failures = 0
        self._failed_at = 0.0
        #: Why the flights since the last one that brought something brought nothing.
        self.trouble: IssuerError | None = None

    def enter(self) -> tuple[Flight, bool]:
        """Return the flight under way and False, or a new one and True: then the caller sees to it that it flies."""
        with self._lock:
            flight = self._flight
            if flight is None or flight.landed or self.left(flight) <= 0:
                flight = self._flight = Flight()
                return flight, True
            return flight, False

    def left(self, flight: Flight) -> float:
        """Seconds until the flight counts as lost."""
        return flight.begun + self._longest - monotonic()

    def is_current(self, flight: Flight) -> bool:
        """Whether no other flight has departed since: one that counted as lost may come back late."""
        return self._flight is flight

    def land(self, flight: Flight, *, progress: bool, error: IssuerError | None = None) -> None:
        """End the flight and count the failures in a row."""
        if progress:
            self._failures, self.trouble = 0, None
        else:
            self._failures, self._failed_at = self._failures + 1, monotonic()
            self.trouble = error or self.trouble
        flight.land(progress=progress, error=error)

    @property
    def busy(self) -> bool:
        """Whether a flight is under way, and not lost."""
        flight = self._flight
        return flight is not None and not flight.landed and self.left(flight) > 0

    def pause(self) -> float:
        """Seconds to wait before the next flight: 0 after one that brought something, growing with the failures."""
        if not self._failures:
            return 0.0
        return max(0.0, self._failed_at + pause(self._failures) - monotonic())

    def settle(self, deadline: Deadline) -> None:
        """Wait for the flight under way, if there is one, until the deadline."""
        flight = self._flight
        if flight is not None and flight.claimed:
            flight.wait(deadline.left())


def renewed(error: IssuerError) -> IssuerError:
    """Return a copy of the error for another thread to raise, chained to the first."""
    again = copy.copy(error)
    again.__cause__ = error
    return again
