"""Work that several callers need, done by one of them."""

from __future__ import annotations

from collections.abc import Callable

from issuer.clock import Deadline
from issuer.core.single_flight import Flight, SingleFlight, renewed
from issuer.core.steps import Steps, wait
from issuer.errors import IssuerError, Unavailable

#: Work that has not ended after this many seconds counts as lost with its thread, and another caller begins.
LONGEST = 30.0


class Once:
    """One caller at a time; those that come meanwhile wait for the end.

    If it ends with an error that asking again won't better, they get the same one. Otherwise, as when the first had
    little time, the next one does it.
    """

    def __init__(self, what: str, tag: str, flight: Callable[[], Flight]) -> None:
        """Make one; `what` is under way, for messages."""
        self._what = what
        self._tag = tag
        self._board = SingleFlight(flight, longest=LONGEST)

    def do(self, steps: Callable[[], Steps[None]], done: Callable[[], bool], deadline: Deadline) -> Steps[None]:
        """Run the steps, or wait for a caller that does, until it is done. Raises what they raise; Unavailable."""
        while not done():
            flight, first = self._board.enter()
            if first:
                yield from self._fly(flight, steps)
                return
            yield from wait(flight, min(deadline.left(), self._board.left(flight)))
            verdict = flight.verdict()
            if verdict is not None:
                raise verdict
            if deadline.left() <= 0 and not done():
                late = Unavailable(f"tag {self._tag!r}: {self._what} took too long", tag=self._tag)
                raise renewed(flight.error or late)

    def _fly(self, flight: Flight, steps: Callable[[], Steps[None]]) -> Steps[None]:
        try:
            yield from steps()
        except BaseException as error:
            self._board.land(flight, progress=False, error=error if isinstance(error, IssuerError) else None)
            raise
        self._board.land(flight, progress=True)
