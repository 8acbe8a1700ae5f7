"""Single flight: if several callers of a process need the same thing, one fetches it and the others wait."""

from __future__ import annotations

from collections.abc import Callable

from issuer.clock import Deadline, jittered, monotonic, pause
from issuer.core.steps import Flight, Steps, renewed, wait
from issuer.errors import IssuerError, StoreUnavailable, Unavailable
from issuer.reentry import CallLock

#: Work of `SingleFlight.do` that takes longer counts as lost together with its thread. In seconds.
LONGEST = 30.0

#: Highest `retry_after`, however long an outage lasts. In seconds.
LATEST_RETRY = 30.0

#: `retry_after` as a share of the outage so far.
RETRY_AFTER = 0.1


class SingleFlight:
    """Work that one caller does for all callers that need it."""

    __slots__ = ("_failed_at", "_flight", "_lock", "_longest", "_make", "_silent_since", "failures", "trouble")

    def __init__(self, make: Callable[[], Flight], longest: float = LONGEST) -> None:
        """`longest`: after so many seconds a flight counts as lost, and another one may begin."""
        self._lock = CallLock()
        self._make = make
        self._flight: Flight | None = None
        self._longest = longest
        #: How many flights in a row have failed.
        self.failures = 0
        self._failed_at = 0.0
        #: When a flight first found the store down. None if the last flight did not.
        self._silent_since: float | None = None
        #: The last temporary error since a flight succeeded.
        self.trouble: IssuerError | None = None

    def join(self, wanted: int = 0) -> tuple[Flight, bool]:
        """Return the current flight and False, or a new one and True. The caller must start a new one.

        `wanted`: how many numbers the flight should fetch at least. If it has already asked for fewer, another flight
        follows.
        """
        with self._lock.thread, self._lock.call():
            flight, leads = self.flight, False
            if flight is None:
                flight, leads = self._make(), True
                self._flight = flight
        flight.wanted = max(flight.wanted, wanted)
        return flight, leads

    @property
    def flight(self) -> Flight | None:
        """The current flight, or None."""
        flight = self._flight
        return flight if flight is not None and not flight.finished and self.left(flight) > 0 else None

    def left(self, flight: Flight) -> float:
        """Return the seconds until the flight counts as lost."""
        return flight.begun + self._longest - monotonic()

    def is_current(self, flight: Flight) -> bool:
        """Whether no other flight has begun since. A flight that counted as lost may still return late."""
        return self._flight is flight

    def finish(
        self, flight: Flight, *, progress: bool, error: IssuerError | None = None, in_a_hurry: bool = False
    ) -> None:
        """End the flight, and count consecutive failures. `in_a_hurry`: it had too little time to detect an outage.

        Only the waiters of this flight get a permanent error. Later callers try again: the cause may be repaired by
        then.
        """
        now = monotonic()
        if progress:
            self.failures, self.trouble, self._silent_since = 0, None, None
        else:
            since = self._silent_since if self._recent(now) else None
            self.failures, self._failed_at = self.failures + 1, now
            if isinstance(error, StoreUnavailable):
                since = now if since is None and not in_a_hurry else since
            elif error is not None:
                since = None
            self._silent_since = since
            if error is not None:
                self.trouble = error if isinstance(error, Unavailable) else None
        flight.finish(progress=progress, error=error)

    def do(
        self, steps: Callable[[], Steps[None]], done: Callable[[], bool], deadline: Deadline, *, tag: str, what: str
    ) -> Steps[None]:
        """Run the steps until it is `done`, or wait for another caller that runs them. Raises their errors.

        If they fail with a permanent error, all waiters get the same one. Otherwise the next waiter runs them, until
        its deadline: the first one may have had little time. `what` names the work in messages.
        """
        while not done():
            flight, leads = self.join()
            if leads:
                try:
                    yield from steps()
                except BaseException as error:
                    self.finish(flight, progress=False, error=error if isinstance(error, IssuerError) else None)
                    raise
                self.finish(flight, progress=True)
                return
            yield from wait(flight, min(deadline.left(), self.left(flight)))
            if flight.error is not None and not isinstance(flight.error, Unavailable):
                raise renewed(flight.error)
            if deadline.left() <= 0 and not done():
                late = Unavailable(f"tag {tag!r}: {what} took too long", tag=tag)
                raise renewed(flight.error or late)

    def _recent(self, now: float) -> bool:
        return self.failures > 0 and now - self._failed_at <= self._longest

    @property
    def silence(self) -> float | None:
        """For how many seconds the store has been down. None if it answered last, or was not called lately."""
        now, since = monotonic(), self._silent_since
        return now - since if since is not None and self._recent(now) else None

    def pause(self) -> float:
        """Return the seconds to wait before the next flight: 0 after a success, and longer after each failure."""
        if not self.failures:
            return 0.0
        return max(0.0, self._failed_at + pause(self.failures) - monotonic())

    def retry_after(self) -> float:
        """Return the seconds until a retry makes sense, above 0: the current pause, or more in a long outage."""
        least = max(0.005, self.pause() or pause(self.failures + 1))
        return max(least, jittered(min(LATEST_RETRY, (self.silence or 0.0) * RETRY_AFTER)))
