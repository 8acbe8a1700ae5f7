"""Tally of a server: what it counts of itself, in plain numbers that a request raises, and that metrics read."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from typing import Final

#: Seconds within which requests are answered, as metrics show it.
WITHIN: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Times:
    """Times that requests took. `counts`: by WITHIN, and at the end those that took longer. `seconds`: in all."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(WITHIN) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Take a request in."""
        self.counts[bisect_left(WITHIN, seconds)] += 1
        self.seconds += seconds


class Tally:
    """Counts of one process since it was started. Labels are names of ours, and of tokens: no client's text.

    `draws`: times of the requests of the shortest way, route next and status 200, by the name of the token; they are in
    no other count. `requests`: by route, status and token; `times`: by route. `commands`: by name, of Redis's protocol;
    `failures`: of authentication, by protocol. `connections`: by protocol, what returns how many there are.
    """

    def __init__(self) -> None:
        self.draws: defaultdict[str, Times] = defaultdict(Times)
        self.requests: defaultdict[tuple[str, int, str], int] = defaultdict(int)
        self.times: defaultdict[str, Times] = defaultdict(Times)
        self.commands: defaultdict[str, int] = defaultdict(int)
        self.failures: defaultdict[str, int] = defaultdict(int)
        self.connections: dict[str, Callable[[], int]] = {}

    def answered(self, route: str, status: int, token: str, seconds: float) -> None:
        """Count a request of HTTP."""
        self.requests[route, status, token] += 1
        self.times[route].add(seconds)
