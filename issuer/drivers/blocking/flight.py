"""Single flight: of all the callers in a process that need a segment of a tag, one leads and the others wait for it."""

from __future__ import annotations

import threading

from issuer.clock import Deadline, monotonic
from issuer.errors import IssuerError, Unavailable


class Flight:
    """One extension under way. Waiters sleep on an event; nobody spins."""

    __slots__ = ("_landed", "begun", "error", "progress")

    def __init__(self) -> None:
        self._landed = threading.Event()
        self.begun = monotonic()
        self.error: IssuerError | None = None
        self.progress = False

    def land(self, *, progress: bool, error: IssuerError | None = None) -> None:
        """End it and wake all waiters. `progress`: numbers are there now, so that asking again makes sense at once."""
        self.progress = progress
        self.error = error
        self._landed.set()

    @property
    def landed(self) -> bool:
        """Whether it has ended."""
        return self._landed.is_set()

    def wait(self, deadline: Deadline) -> bool:
        """Wait for its end; False if the deadline came first."""
        return self._landed.wait(deadline.left())

    def verdict(self) -> IssuerError | None:
        """Return the error that asking again won't better, as a fresh exception for each waiter; else None."""
        if self.error is None or isinstance(self.error, Unavailable):
            return None
        return renewed(self.error)


class Board:
    """Where the flights of one tag depart: at most one is in the air."""

    __slots__ = ("_flight", "_lock", "_longest", "failures")

    def __init__(self, longest: float) -> None:
        """`longest`: seconds after which a flight counts as lost with its thread, and another may depart."""
        self._lock = threading.Lock()
        self._flight: Flight | None = None
        self._longest = longest
        #: How many flights in a row brought nothing.
        self.failures = 0

    def enter(self) -> tuple[Flight, bool]:
        """Return the flight under way and False, or a new one and True: then the caller leads, and must land it."""
        with self._lock:
            flight = self._flight
            if flight is None or flight.landed or monotonic() - flight.begun > self._longest:
                flight = self._flight = Flight()
                return flight, True
            return flight, False

    def land(self, flight: Flight, *, progress: bool, error: IssuerError | None = None) -> None:
        """End the flight and count the failures in a row."""
        self.failures = 0 if progress else self.failures + 1
        flight.land(progress=progress, error=error)

    @property
    def busy(self) -> bool:
        """Whether a flight is under way."""
        flight = self._flight
        return flight is not None and not flight.landed

    def settle(self, deadline: Deadline) -> None:
        """Wait for the flight under way, if there is one, until the deadline."""
        flight = self._flight
        if flight is not None:
            flight.wait(deadline)


def renewed(error: IssuerError) -> IssuerError:
    """Return a copy of the error for another thread to raise, chained to the first."""
    copy = type(error).__new__(type(error), *error.args)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error
    return copy
