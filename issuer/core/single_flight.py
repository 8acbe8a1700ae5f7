"""Single flight: of all the callers in a process that need the same thing, one gets it and the others wait for it."""

from __future__ import annotations

from collections.abc import Callable

from issuer.clock import Deadline, jittered, monotonic, pause
from issuer.core.steps import Flight, Steps, renewed, wait
from issuer.errors import IssuerError, StoreUnavailable, Unavailable
from issuer.reentry import CallLock

#: Work of `SingleFlight.do` that has not ended after this many seconds counts as lost with its thread.
LONGEST = 30.0

#: The most seconds that a `retry_after` says, however long an outage lasts.
LATEST_RETRY = 30.0

#: A `retry_after` is this part of the outage so far.
RETRY_AFTER = 0.1


class SingleFlight:
    """One piece of work, done by one caller for all that want it."""

    __slots__ = ("_failed_at", "_flight", "_lock", "_longest", "_make", "_silent_since", "failures", "trouble")

    def __init__(self, make: Callable[[], Flight], longest: float = LONGEST) -> None:
        """`longest`: seconds after which a flight counts as lost with its thread, and another may begin."""
        self._lock = CallLock()
        self._make = make
        self._flight: Flight | None = None
        self._longest = longest
        #: How many flights in a row have brought nothing.
        self.failures = 0
        self._failed_at = 0.0
        #: When a flight found the store away for the first time, None if the last one didn't.
        self._silent_since: float | None = None
        #: The error of the flights since the last one that brought something, if it may pass by itself.
        self.trouble: IssuerError | None = None

    def join(self, wanted: int = 0) -> tuple[Flight, bool]:
        """Return the flight under way and False, or a new one and True: then the caller sees to it that it starts.

        `wanted`: have it bring that many numbers, if it has not asked for them yet. A race brings fewer, and another
        flight.
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
        """The flight under way, None if there is none."""
        flight = self._flight
        return flight if flight is not None and not flight.finished and self.left(flight) > 0 else None

    def left(self, flight: Flight) -> float:
        """Seconds until the flight counts as lost."""
        return flight.begun + self._longest - monotonic()

    def is_current(self, flight: Flight) -> bool:
        """Whether no other flight has begun since: one that counted as lost may come back late."""
        return self._flight is flight

    def finish(
        self, flight: Flight, *, progress: bool, error: IssuerError | None = None, in_a_hurry: bool = False
    ) -> None:
        """End the flight and count the failures in a row. `in_a_hurry`: it had no time to tell a store that is away.

        An error that asking again won't better is raised in the waiters of this flight, and in no later caller: by then
        it may be mended, and something else be wrong.
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
        """Run the steps, or wait for a caller that does, until it is `done`. Raises what they raise; Unavailable.

        If they end with an error that asking again won't better, those that wait get the same one. Otherwise, as when
        the first had little time, the next one runs them. `what` is under way, for messages.
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
        """Seconds for which the store has been away; None if it answered last, or wasn't asked lately."""
        now, since = monotonic(), self._silent_since
        return now - since if since is not None and self._recent(now) else None

    def pause(self) -> float:
        """Seconds to wait before the next flight: 0 after one that brought something, growing with the failures."""
        if not self.failures:
            return 0.0
        return max(0.0, self._failed_at + pause(self.failures) - monotonic())

    def retry_after(self) -> float:
        """Seconds after which asking again makes sense, above 0: the pause now in force, more in a long outage."""
        least = max(0.005, self.pause() or pause(self.failures + 1))
        return max(least, jittered(min(LATEST_RETRY, (self.silence or 0.0) * RETRY_AFTER)))
