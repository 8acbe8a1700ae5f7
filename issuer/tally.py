"""Counters of a server. Requests increment them, metrics read them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from typing import Final

#: Upper bounds of the histogram's buckets, in seconds.
WITHIN: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Times:
    """A histogram of durations. `counts`: number of durations in each bucket of WITHIN, then above. `seconds`: sum."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(WITHIN) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count a request."""
        self.counts[bisect_left(WITHIN, seconds)] += 1
        self.seconds += seconds


class Tally:
    """Counters of one process since its start. No label comes from a client, except for names of tokens.

    Attributes:
        draws: Durations of draws by the short way of `Application`, by token. `requests` and `times` lack these draws.
        requests: Count by route, status and token.
        times: Durations by route.
        commands: Count of commands of the Redis protocol, by name.
        failures: Failed authentications by protocol.
        connections: Functions that return the number of connections, by protocol.
    """

    def __init__(self) -> None:
        self.draws: defaultdict[str, Times] = defaultdict(Times)
        self.requests: defaultdict[tuple[str, int, str], int] = defaultdict(int)
        self.times: defaultdict[str, Times] = defaultdict(Times)
        self.commands: defaultdict[str, int] = defaultdict(int)
        self.failures: defaultdict[str, int] = defaultdict(int)
        self.connections: dict[str, Callable[[], int]] = {}

    def answered(self, route: str, status: int, token: str, seconds: float) -> None:
        """Count an HTTP request."""
        self.requests[route, status, token] += 1
        self.times[route].add(seconds)
