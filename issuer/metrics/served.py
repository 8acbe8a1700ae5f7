"""Metrics of what a server counts of itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, chain

from issuer.metrics import definitions as of
from issuer.metrics.definitions import Definition
from issuer.metrics.families import Families
from issuer.metrics.reading import Readings
from issuer.tally import WITHIN, Tally

_WITHIN = (*map(str, WITHIN), "+Inf")


class Served:
    """A server's tally, and what of it the metrics have already."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._counted: dict[tuple[Definition, tuple[str, ...]], float] = {}

    def read(self, families: Families, into: Readings) -> None:
        """Raise the counters by what has come since the last time, and read the gauges."""
        totals: dict[tuple[Definition, tuple[str, ...]], float] = {}
        for which, labels, value in self._values():
            totals[which, labels] = totals.get((which, labels), 0) + value
        for (which, labels), total in totals.items():
            families.count(which, *labels, by=max(0.0, total - self._counted.get((which, labels), 0)))
        self._counted = totals
        for protocol, count in self.tally.connections.items():
            into.add(of.CONNECTIONS, count(), protocol)

    def _values(self) -> Iterator[tuple[Definition, tuple[str, ...], float]]:
        tally = self.tally
        for (route, status, token), count in list(tally.requests.items()):
            yield of.REQUESTS, (route, str(status), token), count
        draws = list(tally.draws.items())
        for token, times in draws:
            yield of.REQUESTS, ("next", "200", token), sum(times.counts)
        for route, times in chain(list(tally.times.items()), [("next", times) for _, times in draws]):
            yield of.REQUEST_SECONDS, (route,), times.seconds
            for within, count in zip(_WITHIN, accumulate(times.counts), strict=True):
                yield of.REQUESTS_WITHIN, (route, within), count
        for name, count in list(tally.commands.items()):
            yield of.COMMANDS, (name,), count
        for protocol, count in list(tally.failures.items()):
            yield of.AUTH_FAILURES, (protocol,), count
