"""Counters of `issuer serve`. Requests increment these counters, and the metrics show them."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from typing import Final

#: Upper bounds of the buckets of all histograms, in seconds. A nearby store answers in 1 to 5 ms. A request to the
#: store ends after `store_timeout`, by default 3 s.
WITHIN: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Times:
    """A histogram of durations.

    `counts`: number of durations in each bucket of WITHIN. The last count is for longer durations. `seconds`: the sum.
    """

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(WITHIN) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Add the duration of a request."""
        self.counts[bisect_left(WITHIN, seconds)] += 1
        self.seconds += seconds


class Tally:
    """Counters of one process since its start. Clients cannot add new labels: only names of tokens come from outside.

    Attributes:
        draws: Durations of the draws that took the short way, by token. `issuer.doors.web.app.Application` explains the
            short way. `requests` and `times` do not contain these draws.
        requests: Number of HTTP requests, by route, status and token.
        times: Durations of HTTP requests, by route.
        commands: Number of commands of the Redis protocol, by name of the command.
        failures: Number of failed authentications, by protocol.
        connections: For each protocol, a function that returns the number of open connections.
        lines_dropped: Returns how many lines of the log were dropped.
    """

    def __init__(self) -> None:
        self.draws: defaultdict[str, Times] = defaultdict(Times)
        self.requests: defaultdict[tuple[str, int, str], int] = defaultdict(int)
        self.times: defaultdict[str, Times] = defaultdict(Times)
        self.commands: defaultdict[str, int] = defaultdict(int)
        self.failures: defaultdict[str, int] = defaultdict(int)
        self.connections: dict[str, Callable[[], int]] = {}
        self.lines_dropped: Callable[[], int] = int

    def answered(self, route: str, status: int, token: str, seconds: float) -> None:
        """Count an HTTP request."""
        self.requests[route, status, token] += 1
        self.times[route].add(seconds)
