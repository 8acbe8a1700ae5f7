"""Metrics for Prometheus: event counters of an issuer, and gauges of its tags.

    from issuer.metrics import install

    metrics = install(ids)
    content_type, body = metrics.exposition()

`connect(metrics=True)` installs them too. Drawing a number does no extra work: issued numbers are computed from counter
positions. The extra `metrics` is required; without it the import raises ConfigurationError. docs/reference/metrics.md
lists all metrics; docs/operate/monitoring.md describes how several worker processes share them.
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
