"""What an exposition shows, by metric and labels."""

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from issuer.metrics import Metrics


class Shown:
    """The samples of an exposition. A counter is called as it is shown: with `_total`."""

    def __init__(self, body: str) -> None:
        self.samples: Mapping[str, dict[tuple[tuple[str, str], ...], float]] = {}
        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(body):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        self.samples = found

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value under exactly these labels, None if there is none."""
        return self.samples.get(f"issuer_{name}", {}).get(tuple(sorted(labels.items())))

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of all that have these labels."""
        return sum(
            value
            for found, value in self.samples.get(f"issuer_{name}", {}).items()
            if set(labels.items()) <= set(found)
        )

    def tags(self) -> set[str]:
        """Return every value that the label `tag` has anywhere."""
        return {
            dict(labels)["tag"]
            for name, found in self.samples.items()
            if name.startswith("issuer_")
            for labels in found
            if "tag" in dict(labels)
        }


def shown(metrics: Metrics) -> Shown:
    content_type, body = metrics.exposition()
    assert content_type.startswith("text/plain; version=")
    return Shown(body.decode())


def watched(ids: object) -> object:
    """Return the issuer itself, where it is behind a blocking face."""
    return getattr(ids, "_ids", ids)
