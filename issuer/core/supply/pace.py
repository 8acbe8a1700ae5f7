"""The rate at which a process uses a tag's numbers, and the leases that fit this rate."""

from __future__ import annotations

from issuer.clock import monotonic
from issuer_persistence.records import LEASE_MOST

#: Below this many numbers a second, each number is drawn from Redis.
LEAST = 10

#: Leases begin when the rate has lasted for this many sweeps, and fit the lowest of these rates. A burst of a second
#: touches two sweeps. If it had leases, each process would leave unused numbers after the burst.
SWEEPS = 3

#: A lease lasts this many seconds. The next lease is fetched early, so a process holds less than two of them: about
#: what it uses in a second. So many numbers are lost if the process is killed.
LASTS = 0.5

#: If the rate falls, a process returns its numbers if it holds more than this many leases of the new size.
KEPT = 3


class Pace:
    """Measures how many numbers of a tag a process uses per second."""

    __slots__ = ("_at", "_rates", "_used")

    def __init__(self) -> None:
        self._at = monotonic()
        self._used = 0
        self._rates: tuple[float, ...] = ()

    def rate(self, used: int) -> float:
        """Return the lowest rate of the last SWEEPS measurements, or 0 if there were fewer.

        `used`: how many numbers the process has used so far.
        """
        now = monotonic()
        lasted = now - self._at
        if lasted > LASTS:  # else a caller has called `tick` soon after a sweep
            self._rates = (*self._rates[1 - SWEEPS :], (used - self._used) / lasted)
            self._at, self._used = now, used
        return min(self._rates) if len(self._rates) == SWEEPS else 0.0


def auto_lease(rate: float, segment: int) -> int:
    """Return the size of a lease for a process that uses `rate` numbers a second. 0: no leases.

    The size is at most a fifth of a segment. Larger leases would use up a segment before the next one is loaded.
    `segment`: size of a segment.
    """
    return int(min(rate * LASTS, segment / 5, LEASE_MOST)) if rate >= LEAST else 0
