"""The metrics as objects of prometheus_client, one for each definition."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import nan
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, values

from issuer.metrics.definitions import BUCKETS, DEFINITIONS, Definition

Family = Counter | Gauge | Histogram


def several_processes() -> bool:
    """Return True if several processes share metrics through files. prometheus_client decides this at its import."""
    return bool(getattr(values.ValueClass, "_multiprocess", False))


class Families:
    """The metrics of a registry: one object of prometheus_client for each definition."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        """Create the metrics in `registry`. None: several processes share metrics, so the metrics are in files."""
        self._registry = registry
        self._made: dict[str, Family] = {}
        #: For each gauge, by name: the combinations of labels that have a value.
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
        """Remove the metrics from the registry."""
        if self._registry is not None:
            for made in self._made.values():
                with suppress(KeyError):  # other code has already removed the metric
                    self._registry.unregister(made)

    def count(self, which: Definition, *labels: str, by: float = 1) -> None:
        """Raise the counter `which` by `by`, 0 or more. If the counter is new and `by` is 0, the counter shows 0."""
        counter = cast("Counter", self._made[which.name])
        (counter.labels(*labels) if labels else counter).inc(by)

    def time(self, which: Definition, *labels: str, seconds: float) -> None:
        """Add a duration in seconds to the histogram `which`."""
        cast("Histogram", self._made[which.name]).labels(*labels).observe(max(0.0, seconds))

    def show(self, which: Definition, found: Mapping[tuple[str, ...], float]) -> None:
        """Set the gauge `which`. `found`: its value for each combination of labels; its other values are removed."""
        gauge = cast("Gauge", self._made[which.name])
        for labels, value in found.items():
            (gauge.labels(*labels) if labels else gauge).set(value)
        shown = self._shown.setdefault(which.name, set())
        for labels in shown.difference(found):
            if not labels:
                gauge.set(0)
            elif several_processes():  # a label cannot be removed from a metrics file
                gauge.labels(*labels).set(nan if which.joined == "livemostrecent" else 0)
            else:
                gauge.remove(*labels)
                shown.discard(labels)
        shown.update(found)
