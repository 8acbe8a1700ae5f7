"""The metrics as objects of prometheus_client, one for each definition."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import accumulate
from math import nan
from typing import Any, Final, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, values
from prometheus_client.metrics_core import HistogramMetricFamily, Metric

from issuer.metrics.definitions import DEFINITIONS, Definition
from issuer.tally import WITHIN

#: Values of the label `le` of a histogram.
BUCKETS: Final = (*map(str, WITHIN), "+Inf")


def several_processes() -> bool:
    """Return True if several processes share metrics through files. prometheus_client decides this at its import."""
    return bool(getattr(values.ValueClass, "_multiprocess", False))


class Histogram:
    """A histogram with counts that can be raised by any number. The one of prometheus_client counts one by one.

    In the files of several processes it looks like the one of prometheus_client, which merges them.
    """

    def __init__(self, which: Definition, registry: CollectorRegistry | None) -> None:
        self._which = which
        #: For each combination of labels: the sum of the durations, and the count of each bucket.
        self._values: dict[tuple[str, ...], dict[str, Any]] = {}
        if registry is not None:
            registry.register(self)

    def labels(self, *labels: str) -> Any:
        """Return a value with a method `inc`. The last label is `le` for the count of a bucket, or "" for the sum."""
        *own, part = labels
        found = self._values.get(tuple(own))
        if found is None:
            name, names, help = self._which.name, self._which.labels, self._which.help
            found = {"": values.ValueClass("histogram", name, f"{name}_sum", names, own, help)}
            for le in BUCKETS:
                found[le] = values.ValueClass("histogram", name, f"{name}_bucket", (*names, "le"), (*own, le), help)
            self._values[tuple(own)] = found
        return found[part]

    def collect(self) -> Iterable[Metric]:
        """Return the metric. prometheus_client calls this method."""
        family = HistogramMetricFamily(self._which.name, self._which.help, labels=self._which.labels)
        for labels, parts in self._values.copy().items():
            counts = accumulate(parts[le].get() for le in BUCKETS)
            family.add_metric(labels, list(zip(BUCKETS, counts, strict=True)), parts[""].get())
        return (family,)

    describe = collect  # prometheus_client calls it once, for the names


Family = Counter | Gauge | Histogram


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
            return Histogram(each, self._registry)
        joined = each.joined or "livemax"
        return Gauge(each.name, each.help, each.labels, registry=self._registry, multiprocess_mode=joined)

    def withdraw(self) -> None:
        """Remove the metrics from the registry."""
        if self._registry is not None:
            for made in self._made.values():
                with suppress(KeyError):  # other code has already removed the metric
                    self._registry.unregister(made)

    def count(self, which: Definition, *labels: str, by: float = 1) -> None:
        """Raise the counter `which` by `by`, 0 or more. If the counter is new and `by` is 0, the counter shows 0.

        Of a histogram, raise the part that the last label names: see Histogram.labels.
        """
        counter = cast("Counter | Histogram", self._made[which.name])
        (counter.labels(*labels) if labels else cast("Counter", counter)).inc(by)

    def time(self, which: Definition, *labels: str, seconds: float) -> None:
        """Add a duration in seconds to the histogram `which`."""
        self.count(which, *labels, BUCKETS[bisect_left(WITHIN, seconds)])
        self.count(which, *labels, "", by=max(0.0, seconds))

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
