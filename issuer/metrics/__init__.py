"""Metrics for Prometheus: event counters of an issuer, and gauges of its tags.

    from issuer.metrics import install

    metrics = install(ids)
    content_type, body = metrics.exposition()

`connect(metrics=True)` installs the metrics, too. The metrics cost a draw no extra work: when the metrics are read, the
count of issued numbers is computed from positions of counters. The extra `metrics` of the package is required; without
it the import raises ConfigurationError. docs/reference/metrics.md lists all metrics; docs/operate/monitoring.md
describes how several worker processes share metrics.
"""

from __future__ import annotations

from issuer.errors import ConfigurationError

try:
    from issuer.metrics.book import Metrics, forget, install
except ModuleNotFoundError as missing:
    if missing.name != "prometheus_client":
        raise
    raise ConfigurationError(
        'metrics need prometheus_client, which is not installed: run pip install ".[metrics]" in a checkout'
    ) from missing

__all__ = ["Metrics", "forget", "install"]
