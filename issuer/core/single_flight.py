"""Single flight: of all the callers in a process that need the same thing, one gets it and the others wait for it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Protocol

from issuer.clock import jittered, monotonic, pause
from issuer.errors import IssuerError, StoreUnavailable, Unavailable

#: The most seconds that a `retry_after` says, however long an outage lasts.
LATEST_RETRY = 30.0

#: A `retry_after` is this part of the outage so far.
RETRY_AFTER = 0.1


class Landing(Protocol):
    """A latch that wakes the waiters of one driver: a lock among threads, a future among tasks."""

    def wake(self) -> None:
        """Wake every waiter, later ones too. Called once."""


class Flight:
    """Something under way that one caller fetches for all. Waiters sleep until it lands."""

    __slots__ = ("_end", "_me", "_pilot", "begun", "error", "landing", "progress", "wanted")

    def __init__(self, landing: Landing, me: Callable[[], object]) -> None:
        """`me` names the thread or task that asks: the flight knows by it which one has claimed it."""
        self._pilot: dict[str, object] = {}
        self._end: dict[str, object] = {}
        self._me = me
        self.landing = landing
        self.begun = monotonic()
        self.error: IssuerError | None = None
        self.progress = False
        #: How many numbers one of its waiters wants, or 0.
        self.wanted = 0

    def want(self, n: int) -> None:
        """Have it bring n numbers, if it has not asked for them yet. A race brings fewer, and another flight."""
        self.wanted = max(self.wanted, n)

    def claim(self) -> bool:
        """Claim the flight: True for one caller, which flies it. If the scheduler loses the job, a waiter claims it.

        `setdefault` is one step: a caller that is interrupted right after it still finds out that the flight is its.
        """
        me = self._me()
        return not self.landed and self._pilot.setdefault("pilot", me) == me

    @property
    def claimed(self) -> bool:
        """Whether a thread or task flies it, or has."""
        return bool(self._pilot)

    @property
    def ours(self) -> bool:
        """Whether this thread or task has claimed it."""
        return self._pilot.get("pilot") == self._me()

    def land(self, *, progress: bool, error: IssuerError | None = None) -> None:
        """End it and wake all waiters. `progress`: it brought something, so that asking again makes sense at once."""
        if self.landed:
            return
        self.progress = progress
        self.error = error
        mine = object()
        if self._end.setdefault("landing", mine) is mine:  # one step, so that the waiters are woken once
            self.landing.wake()

    @property
    def landed(self) -> bool:
        """Whether it has ended."""
        return bool(self._end)

    def verdict(self) -> IssuerError | None:
        """Return the error that asking again won't better, as a fresh exception for each waiter; else None."""
        if self.error is None or isinstance(self.error, Unavailable):
            return None
        return renewed(self.error)


def renewed(error: IssuerError) -> IssuerError:
    """Return the same error as a fresh exception: raised in several threads, one would mix up their tracebacks."""
    fresh = copy.copy(error)
    fresh.__cause__ = error
    return fresh


class SingleFlight:
    """One piece of work, done for all that want it: at most one flight for it is in the air."""

    __slots__ = ("_failed_at", "_failures", "_flight", "_lock", "_longest", "_make", "_silent_since", "trouble")

    def __init__(self, make: Callable[[], Flight], longest: float) -> None:
        """`longest`: seconds after which a flight counts as lost with its thread, and another may depart."""
        self._lock = threading.Lock()
        self._make = make
        self._flight: Flight | None = None
        self._longest = longest
        self._failures = 0
        self._failed_at = 0.0
        #: When a flight found the store away for the first time, None if the last one didn't.
        self._silent_since: float | None = None
        #: The error of the flights since the last one that brought something, if it may pass by itself.
        self.trouble: IssuerError | None = None

    def enter(self) -> tuple[Flight, bool]:
        """Return the flight under way and False, or a new one and True: then the caller sees to it that it flies."""
        with self._lock:
            flight = self._flight
            if flight is None or flight.landed or self.left(flight) <= 0:
                flight = self._flight = self._make()
                return flight, True
            return flight, False

    @property
    def flight(self) -> Flight | None:
        """The flight under way, None if there is none."""
        flight = self._flight
        return flight if flight is not None and not flight.landed and self.left(flight) > 0 else None

    def left(self, flight: Flight) -> float:
        """Seconds until the flight counts as lost."""
        return flight.begun + self._longest - monotonic()

    def is_current(self, flight: Flight) -> bool:
        """Whether no other flight has departed since: one that counted as lost may come back late."""
        return self._flight is flight

    def land(
        self, flight: Flight, *, progress: bool, error: IssuerError | None = None, in_a_hurry: bool = False
    ) -> None:
        """End the flight and count the failures in a row. `in_a_hurry`: it had no time to tell a store that is away.

        An error that asking again won't better is raised in the waiters of this flight, and in no later caller: by then
        it may be mended, and something else be wrong.
        """
        now = monotonic()
        if progress:
            self._failures, self.trouble, self._silent_since = 0, None, None
        else:
            since = self._silent_since if self._recent(now) else None
            self._failures, self._failed_at = self._failures + 1, now
            if isinstance(error, StoreUnavailable):
                since = now if since is None and not in_a_hurry else since
            elif error is not None:
                since = None
            self._silent_since = since
            if error is not None:
                self.trouble = error if isinstance(error, Unavailable) else None
        flight.land(progress=progress, error=error)

    def _recent(self, now: float) -> bool:
        return self._failures > 0 and now - self._failed_at <= self._longest

    @property
    def silence(self) -> float | None:
        """Seconds for which the store has been away; None if it answered last, or wasn't asked lately."""
        now, since = monotonic(), self._silent_since
        return now - since if since is not None and self._recent(now) else None

    def pause(self) -> float:
        """Seconds to wait before the next flight: 0 after one that brought something, growing with the failures."""
        if not self._failures:
            return 0.0
        return max(0.0, self._failed_at + pause(self._failures) - monotonic())

    def retry_after(self) -> float:
        """Seconds after which asking again makes sense, above 0: the pause now in force, more in a long outage."""
        least = max(0.005, self.pause() or pause(self._failures + 1))
        return max(least, jittered(min(LATEST_RETRY, (self.silence or 0.0) * RETRY_AFTER)))
