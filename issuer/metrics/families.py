"""The metrics of a registry: prometheus_client's counters, gauges and histograms, by definition."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import nan
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, values

from issuer.metrics.definitions import BUCKETS, DEFINITIONS, Definition

Family = Counter | Gauge | Histogram


def several_processes() -> bool:
    """Whether prometheus_client counts in files that processes share: it decides that when it is imported."""
    return bool(getattr(values.ValueClass, "_multiprocess", False))


class Families:
    """One metric for each definition. Gauges that are read come as a whole: a tag that isn't in it shows none."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        """`registry`: where they are registered; None: nowhere, as with several processes."""
        self._registry = registry
        self._made: dict[str, Family] = {}
        #: The labels that each gauge shows.
        self._shown: dict[str, set[tuple[str, ...]]] = {}
        try:
            for each in DEFINITIONS:
                self._made[each.name] = self._make(each)
        except ValueError:
            self.withdraw()
            raise

    def _make(self, each: Definition) -> Family:
        if each.kind == "counter":
            return Counter(each.name, each.help, each.labels, registry=self._registry)
        if each.kind == "histogram":
            return Histogram(each.name, each.help, each.labels, registry=self._registry, buckets=BUCKETS)
        joined = each.joined or "livemax"
        return Gauge(each.name, each.help, each.labels, registry=self._registry, multiprocess_mode=joined)

    def withdraw(self) -> None:
        """Take them out of the registry."""
        if self._registry is not None:
            for made in self._made.values():
                with suppress(KeyError):  # taken out by somebody else
                    self._registry.unregister(made)

    def count(self, which: Definition, *labels: str, by: float = 1) -> None:
        """Raise a counter. `by`: 0 or more; 0 makes it be shown."""
        cast("Counter", self._made[which.name]).labels(*labels).inc(by)

    def time(self, which: Definition, *labels: str, seconds: float) -> None:
        """Take note of a duration in a histogram."""
        cast("Histogram", self._made[which.name]).labels(*labels).observe(max(0.0, seconds))

    def show(self, which: Definition, found: Mapping[tuple[str, ...], float]) -> None:
        """Set a gauge, by its labels."""
        gauge = cast("Gauge", self._made[which.name])
        for labels, value in found.items():
            (gauge.labels(*labels) if labels else gauge).set(value)
        shown = self._shown.setdefault(which.name, set())
        for labels in shown.difference(found):
            if not labels:
                gauge.set(0)
            elif several_processes():  # there nothing can be taken out of a file
                gauge.labels(*labels).set(nan if which.joined == "livemostrecent" else 0)
            else:
                gauge.remove(*labels)
                shown.discard(labels)
        shown.update(found)
